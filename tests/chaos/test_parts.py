"""The parts of chaos: a proxy that does what it says, a verdict that finds what is wrong."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from service.state.events import AnyEvent, Corrected, Expired, Rewarded, Settled
from tests.chaos.judge import Audit, Cut, Log, audit
from tests.chaos.ledger import Ledger
from tests.chaos.proxy import Kind, Proxy

COMMON: dict[str, Any] = {"at": 0.0, "policy": "linucb", "schema_version": 1}


# -- the proxy ---------------------------------------------------------------------------------


class Talk:
    """A connection through the proxy to a server that says everything twice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def say(self, text: bytes, within_s: float = 0.3) -> bytes | None:
        """The reply, '' from a connection that is broken, None where none comes."""
        try:
            self._writer.write(text)
            async with asyncio.timeout(within_s):
                return await self._reader.read(100)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._writer.transport.abort()


def through(proxied: Callable[[Proxy, list[bytes]], Awaitable[None]]) -> None:
    """Run with a proxy and what its upstream has heard."""

    async def run() -> None:
        heard: list[bytes] = []

        async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while text := await reader.read(100):
                heard.append(text)
                writer.write(2 * text)
            writer.close()

        async with await asyncio.start_server(twice, "127.0.0.1", 0) as upstream:
            proxy = await Proxy(upstream.sockets[0].getsockname()[1]).start()
            try:
                await proxied(proxy, heard)
            finally:
                await proxy.close()

    asyncio.run(run())


async def talk(proxy: Proxy) -> Talk:
    return Talk(*await asyncio.open_connection("127.0.0.1", proxy.port))


async def during(proxy: Proxy, kind: Kind, work: Awaitable[None], seconds: float = 0.4) -> bool:
    episode = asyncio.create_task(proxy.episode(kind, seconds, delay_s=0.15))
    await asyncio.sleep(0.05)
    await work
    return await episode


def test_without_a_fault_all_passes() -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        line = await talk(proxy)
        assert await line.say(b"ab") == b"abab"
        line.close()

    through(proxied)


def test_a_swallowed_reply_never_comes_though_its_command_arrived() -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        line = await talk(proxy)

        async def silent() -> None:
            assert await line.say(b"lost", within_s=0.1) is None

        assert await during(proxy, "swallow", silent())
        assert heard == [b"lost"]
        assert await line.say(b"next") == b""  # cut, so that no later reply takes its place
        assert proxy.faults == {"swallow": 1}
        line.close()

    through(proxied)


def test_a_delayed_reply_comes_late() -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        line = await talk(proxy)

        async def slow() -> None:
            began = monotonic()
            assert await line.say(b"ab", within_s=2.0) == b"abab"
            assert monotonic() - began >= 0.3  # there and back

        assert await during(proxy, "delay", slow(), seconds=1.0)
        line.close()

    through(proxied)


def test_a_torn_reply_breaks_off() -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        line = await talk(proxy)

        async def torn() -> None:
            assert await line.say(b"four") in (b"fou", b"")
            assert await line.say(b"more") == b""

        assert await during(proxy, "tear", torn())
        line.close()

    through(proxied)


def test_cut_breaks_what_is_open_and_refuse_what_comes_too() -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        line = await talk(proxy)
        assert await line.say(b"ab") == b"abab"
        assert await proxy.episode("cut", 0.0)
        assert await line.say(b"ab") == b""

        async def refused() -> None:
            new = await talk(proxy)
            assert await new.say(b"ab") == b""
            new.close()

        assert await during(proxy, "refuse", refused())
        again = await talk(proxy)
        assert await again.say(b"ab") == b"abab"
        again.close()
        line.close()

    through(proxied)


@pytest.mark.parametrize("kind", ["cut", "swallow"])
def test_a_fault_that_nobody_met_is_none(kind: Kind) -> None:
    async def proxied(proxy: Proxy, heard: list[bytes]) -> None:
        assert not await proxy.episode(kind, 0.01)
        assert proxy.faults.total() == 0

    through(proxied)


# -- ledger and verdict ------------------------------------------------------------------------


def rewarded(decision: str, reward: float) -> Rewarded:
    return Rewarded(decision=decision, settled=[Settled("a", reward, [1.0])], **COMMON)


def expired(decision: str) -> Expired:
    return Expired(decision=decision, settled=[Settled("a", 0.0, [1.0])], **COMMON)


def corrected(decision: str, reward: float, was: float) -> Corrected:
    settled = [Settled("a", reward, [1.0])]
    return Corrected(decision=decision, settled=settled, was=[was], since=[1], **COMMON)


ROWS = {"one": 0.5, "two": 0.25}


def decided(name: str, arm: str, propensity: float) -> dict[str, Any]:
    return {"id": name, "logged": True, "ranking": [{"arm": arm, "propensity": propensity}]}


def judged(
    folder: Path,
    log: list[AnyEvent],
    *told: str,
    rows: Mapping[str, float] = ROWS,
    cut: Cut | None = None,
    epochs: Sequence[tuple[int, int]] = (),
) -> Audit:
    """A ledger in which `one` was given 0.5, and `two` 0.25 after its default; answers to each.
    `three` is deferred. rows: their propensities."""
    ledger = Ledger(folder / "ledger.jsonl")
    for name, propensity in ROWS.items():
        ledger.select(decided(name, "a", propensity), key=f"key-{name}")
    ledger.ask("one", {"a": 0.5})
    ledger.ask("two", {"a": 0.25})
    for status in told or ("accepted", "duplicate"):
        ledger.tell("one", ["a"], status)
    ledger.tell("two", ["a"], "corrected")
    ledger.defer("three")
    ledger.close()
    read = Log(enumerate(log, start=1))
    read.epochs += epochs
    read.rankings = {name: (("a", propensity),) for name, propensity in rows.items()}
    return audit(ledger, read, [cut] if cut else [])


SOUND: list[AnyEvent] = [rewarded("one", 0.5), expired("two"), corrected("two", 0.25, 0.0)]


def wrong(found: Audit) -> tuple[int, int, int]:
    return len(found.lost), len(found.doubled), len(found.strange)


def test_a_sound_log_is_found_sound(tmp_path: Path) -> None:
    found = judged(tmp_path, [*SOUND, expired("four")])
    assert wrong(found) == (0, 0, 0)
    assert (found.acknowledged, found.corrected) == (2, 1)


def test_a_lost_reward_is_found(tmp_path: Path) -> None:
    assert wrong(judged(tmp_path, SOUND[1:])) == (1, 0, 0)
    assert wrong(judged(tmp_path, SOUND[:2])) == (1, 0, 0)  # the default stands in its place


def test_another_value_is_a_lost_reward_and_one_that_nobody_gave(tmp_path: Path) -> None:
    assert wrong(judged(tmp_path, [rewarded("one", 0.75), *SOUND[1:]])) == (1, 0, 1)


def test_a_doubled_reward_is_found(tmp_path: Path) -> None:
    for again in (SOUND[0], expired("one"), corrected("one", 0.5, 0.5), SOUND[2]):
        assert wrong(judged(tmp_path, [*SOUND, again])) == (0, 1, 0)


def test_a_reward_that_is_said_to_count_twice_is_found(tmp_path: Path) -> None:
    assert wrong(judged(tmp_path, SOUND, "accepted", "accepted")) == (0, 1, 0)


def test_a_missing_position_is_found(tmp_path: Path) -> None:
    log = Log([(1, expired("one")), (3, expired("two"))])
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        assert wrong(audit(ledger, log)) == (0, 0, 1)


def test_a_decision_that_was_logged_has_its_row(tmp_path: Path) -> None:
    assert wrong(judged(tmp_path, SOUND, rows={"one": 0.5})) == (1, 0, 0)
    assert wrong(judged(tmp_path, SOUND, rows={"one": 0.5, "two": 0.75})) == (1, 0, 0)


def test_what_went_with_a_tail_that_was_cut_is_counted_apart(tmp_path: Path) -> None:
    settled, rows = Counter({("one", "a"): 1}), {"two"}
    cut = Cut(2, 3, settled, rows)
    silent = judged(tmp_path, SOUND[1:], rows={"one": 0.5}, cut=cut)
    assert (wrong(silent), silent.gone) == ((2, 0, 0), 0)
    found = judged(tmp_path, SOUND[1:], rows={"one": 0.5}, cut=cut, epochs=[(2, 3)])
    assert (wrong(found), found.gone) == ((0, 0, 0), 2)
    again = judged(tmp_path, SOUND, "accepted", "accepted", cut=cut, epochs=[(2, 3)])
    assert wrong(again) == (0, 0, 0)  # it was given again


def test_a_decision_that_was_never_activated_is_not_learned(tmp_path: Path) -> None:
    assert wrong(judged(tmp_path, [*SOUND, expired("three")])) == (0, 0, 1)


def test_a_key_that_is_answered_with_two_decisions_is_found(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        for arm in ("a", "b"):
            ledger.select(decided("one", arm, 0.5), key="key")
        log = Log()
        log.rankings["one"] = (("b", 0.5),)
        assert wrong(audit(ledger, log)) == (0, 0, 1)


def test_the_ledger_lies_on_disk_before_the_answer(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.ask("one", {"a": 0.5, "b": 0.25})
    assert (ledger.acknowledged, ledger.unknown) == (0, 2)
    assert '"asked":"one"' in (tmp_path / "ledger.jsonl").read_text()
    ledger.tell("one", ["a", "b"], "accepted")
    ledger.tell("one", ["a", "b"], "duplicate")
    assert (ledger.acknowledged, ledger.unknown) == (2, 0)
    ledger.close()
