"""How many examples a property is tried on: few in the default run, all of them in `make slow`."""

from hypothesis import settings

SHORT, FULL = "short", "full"
LEAST = 10
PART = 4


def register_profiles() -> None:
    """The short one is loaded; `--hypothesis-profile full` takes its place.

    A shared machine pauses now and then: time is not what properties are about.
    """
    settings.register_profile(SHORT, deadline=None, max_examples=50)
    settings.register_profile(FULL, deadline=None, max_examples=100)
    settings.load_profile(SHORT)


def examples(full: int) -> int:
    """Of a property that has a number of its own: a quarter of it in the default run."""
    if settings.get_current_profile_name() == FULL:
        return full
    return min(full, max(LEAST, full // PART))
