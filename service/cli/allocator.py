"""How the C library gives out memory to arrays."""

import contextlib
import ctypes
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""What glibc takes at most from what was freed before. By itself it asks the kernel for each array
of more than 128 KiB, page by page: 64 decisions of a net took 8.0 ms in place of 4.6."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Arrays come from what was freed, up to twice KEPT_BYTES of it. Nothing where libc is
    another's."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES)
