"""The trainer: a process of its own, and the only code that imports torch."""

from importlib.util import find_spec

from service.errors import ConfigurationError

TORCH = "torch is not installed; pip install 'forage-bandits[train]'"


def can_train() -> bool:
    """Say whether torch is installed. It is not imported: that takes seconds and 200 MB."""
    return find_spec("torch") is not None


def expect_torch() -> None:
    """Raise ConfigurationError where torch is not installed."""
    if not can_train():
        raise ConfigurationError(f"nets cannot be trained: {TORCH}")
