"""The trainer, for tests of processes: torch is not installed where only the gate runs."""

from collections.abc import Awaitable, Callable
from typing import Any


def trainer() -> Callable[..., Awaitable[bytes | None]]:
    """`train` of the trainer, on one thread."""
    import torch

    from service.training.trainer import train

    torch.set_num_threads(1)
    found: Any = train
    return found  # type: ignore[no-any-return]
