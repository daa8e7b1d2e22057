"""What a load test counts, and how what several processes counted is added up."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

LONGEST_US: Final = 3_600_000_000
KINDS: Final = ("select", "reward")
ERROR: Final = "error"


class Latencies:
    """Latencies in microseconds, to three significant digits: the layout of an HDR histogram.

    A value v below 2,048 has a count of its own; above, v >> s has, where s is such that it lies
    in [1024, 2048). To record one takes 0.2 microseconds, and memory does not grow with their
    number. `hdr` of load_summary makes the library's histogram of them.
    """

    def __init__(self) -> None:
        self.counts = [0] * (_index(LONGEST_US) + 1)
        self.worst_us = 0

    def record(self, seconds: float) -> None:
        """Count one."""
        us = int(seconds * 1e6)
        if us < 2_048:
            self.counts[us if us > 0 else 0] += 1
        else:
            us = min(us, LONGEST_US)
            shift = us.bit_length() - 11
            self.counts[(shift << 10) + (us >> shift)] += 1
        if us > self.worst_us:
            self.worst_us = us

    def items(self) -> Iterator[tuple[int, int]]:
        """Latency (the least of those counted together, microseconds) and count, rising."""
        for index, count in enumerate(self.counts):
            if count:
                yield _value_us(index), count

    def __len__(self) -> int:
        return sum(self.counts)

    def add(self, told: dict[str, Any]) -> None:
        """Count what another process told with `as_json`."""
        for index, count in told["counts"].items():
            self.counts[int(index)] += count
        self.worst_us = max(self.worst_us, told["worst_us"])

    def as_json(self) -> dict[str, Any]:
        """To be added up elsewhere."""
        counts = {str(index): count for index, count in enumerate(self.counts) if count}
        return {"counts": counts, "worst_us": self.worst_us}


def _index(us: int) -> int:
    shift = max(0, us.bit_length() - 11)
    return (shift << 10) + (us >> shift)


def _value_us(index: int) -> int:
    shift = max(0, (index >> 10) - 1)
    return (index - (shift << 10)) << shift


class Tally:
    """All that is counted. Errors by kind of request and by status, or refused, closed, broken,
    timeout; answers of another status than 2xx are errors."""

    def __init__(self) -> None:
        self.latencies = {kind: Latencies() for kind in KINDS}
        self.errors: Counter[tuple[str, str]] = Counter()
        self.unlogged = 0
        self.late = Latencies()  # of the client itself: from when a request was due
        self.seconds: dict[str, list[int]] = {each: [] for each in (*KINDS, ERROR)}
        self.answered = dict.fromkeys(KINDS, 0)  # within the seconds that count
        self.cores: list[float] = []  # of each process: share of a core that it used
        self.counted_s: list[float] = []

    def second(self, number: int, what: str) -> None:
        """Count an answer, by its kind, or an error in a second of the test."""
        if number >= len(self.seconds[what]):
            for counts in self.seconds.values():
                counts += [0] * (number + 1 - len(counts))
        self.seconds[what][number] += 1

    def add(self, told: dict[str, Any]) -> None:
        """Count what another process told with `as_json`."""
        for kind in KINDS:
            self.latencies[kind].add(told["latencies"][kind])
            self.answered[kind] += told["answered"][kind]
        for kind, what, count in told["errors"]:
            self.errors[kind, what] += count
        self.late.add(told["late"])
        self.unlogged += told["unlogged"]
        self.cores += told["cores"]
        self.counted_s += told["counted_s"]
        for what, counts in told["seconds"].items():
            for number, count in enumerate(counts):
                self.second(number, what)
                self.seconds[what][number] += count - 1

    def as_json(self) -> dict[str, Any]:
        """To be added up elsewhere."""
        return {
            "latencies": {kind: each.as_json() for kind, each in self.latencies.items()},
            "answered": self.answered,
            "errors": [[*key, count] for key, count in self.errors.items()],
            "late": self.late.as_json(),
            "unlogged": self.unlogged,
            "cores": self.cores,
            "counted_s": self.counted_s,
            "seconds": self.seconds,
        }
