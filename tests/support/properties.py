"""How many examples a property is tried on: few in the gate, all of them in `make slow`."""

from hypothesis import HealthCheck, settings

SHORT, FULL = "short", "full"
LEAST = 10
PART = 4


def register_profiles() -> None:
    """The short one is loaded; `--hypothesis-profile full` takes its place.

    The short one has the same examples in each run, and no check of its own looks at the time: the
    gate judges the code alone.
    """
    settings.register_profile(
        SHORT,
        deadline=None,
        max_examples=50,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile(FULL, deadline=None, max_examples=100)
    settings.load_profile(SHORT)


def examples(full: int) -> int:
    """Of a property that has a number of its own: a quarter of it in the gate."""
    if settings.get_current_profile_name() == FULL:
        return full
    return min(full, max(LEAST, full // PART))
