"""The machine of a benchmark: its name, the steal time of a core, and the latency of its disk."""

import os
import platform
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from benchmarks.tables import Json
from simulator_client.load import histogram, record

PACKAGES: Final = ("uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "numpy", "redis",
                   "mabwiser", "vowpalwabbit")  # fmt: skip
STAT: Final = Path("/proc/stat")
WRITE_BYTES: Final = 80 * 1_024  # of a commit of ten decisions: twenty pages
FILE_BYTES: Final = 16 * 1_024 * 1_024
EVERY_S: Final = 0.004


def machine() -> Json:
    """Return the processor and the versions that a benchmark ran on."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # the extra `bench` is for the peers alone
            versions[name] = version(name)
    return {"processor": processor(), "python": platform.python_version(), **versions}


def processor() -> str:
    """Return the name of the processor; elsewhere than on Linux, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


def stolen_s(core: int) -> float:
    """Return the seconds of work that the hypervisor kept from a core; 0 if it reports none."""
    try:
        lines = STAT.read_text().splitlines()
    except OSError:
        return 0.0
    fields = next((line.split() for line in lines if line.startswith(f"cpu{core} ")), [])
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else 0.0


def disk(folder: Path, seconds: float) -> HdrHistogram:
    """Make 80 KiB durable 250 times a second, and return the latencies in microseconds.

    The file has its length already, as the log has.
    """
    found = histogram()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        handle, content = file.fileno(), os.urandom(WRITE_BYTES)
        os.posix_fallocate(handle, 0, FILE_BYTES)
        for start in range(0, FILE_BYTES, WRITE_BYTES):
            os.pwrite(handle, content[: FILE_BYTES - start], start)
        os.fsync(handle)
        end, place = time.perf_counter() + seconds, 0
        while (start_s := time.perf_counter()) < end:
            os.pwrite(handle, content, place)
            os.fdatasync(handle)
            took_s = time.perf_counter() - start_s
            record(found, took_s)
            place = (place + WRITE_BYTES) % (FILE_BYTES - WRITE_BYTES)
            time.sleep(max(0.0, EVERY_S - took_s))
    return found
