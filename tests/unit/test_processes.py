"""Parts of a work in processes of their own: their order, their errors, and one that is killed."""

import asyncio
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence

import pytest

from service.errors import LogGap, ProcessEnded
from service.offline.processes import Processes
from tests.unit.parts import doubled

pytestmark = pytest.mark.process


def doubles(numbers: Sequence[int]) -> list[int]:
    async def run() -> list[int]:
        async with Processes(2) as processes:
            return await processes.map(doubled, [(number,) for number in numbers])

    return asyncio.run(run())


def test_what_parts_found_comes_in_the_order_they_were_asked_in() -> None:
    assert doubles([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]


def test_an_error_of_a_part_is_that_of_the_whole() -> None:
    with pytest.raises(LogGap, match="-3 is below 0"):
        doubles([1, 2, -3, 4])


def test_a_process_that_is_killed_ends_the_work() -> None:
    with pytest.raises(ProcessEnded, match="ended with status -9"):
        doubles([1, 0, 2, 3])


def test_a_process_whose_parent_is_gone_ends_with_its_part_and_says_nothing() -> None:
    command = [sys.executable, "-m", "service.offline.processes"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        content = pickle.dumps((doubled, (1,)))
        process.stdin.write(struct.pack("<Q", len(content)) + content)
        process.stdin.close()
        assert (process.stderr.read(), process.wait()) == (b"", 1)
