"""How the C library allocates memory for arrays."""

import contextlib
import ctypes
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""Bytes of the largest array that glibc serves from freed memory. By default it asks the kernel for
each array above 128 KiB, page by page: 64 decisions of a net took 8.0 ms instead of 4.6."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Serve arrays from freed memory, up to twice KEPT_BYTES of it. Do nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES)
