"""Random bits of the operating system."""

import os
from random import SystemRandom

PAGE_BYTES = 4_096


class Entropy(SystemRandom):
    """Reads a page at a time: a system call takes longer than a decision's use of its 191 bits (7
    microseconds a decision in place of 1)."""

    def __init__(self) -> None:
        self._page, self._used = b"", 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        if self._used + size > len(self._page):
            self._page, self._used = os.urandom(max(PAGE_BYTES, size)), 0
        start, self._used = self._used, self._used + size
        return int.from_bytes(self._page[start : self._used], "big") >> (8 * size - k)
