"""What the processes of `test_processes` run."""

import os
import signal

from service.errors import LogGap
from service.offline.processes import CountMore


async def doubled(number: int, count: CountMore) -> int:
    count(number)
    if number < 0:
        raise LogGap(f"{number} is below 0")
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number
