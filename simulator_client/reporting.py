"""How a run tells the service what came of its visits: of each at once, or of clicks alone.

A miss is a visit without a click. On a site nobody reports one: the service waits for a click, and
then learns its default reward. The other ways are there to be compared with that one.
"""

from collections.abc import Iterable
from typing import Any, Final

from simulator_client.errors import UsageError
from simulator_client.journal import Record, Run, world_of

ALL: Final = "all"
CLICKS_ONLY: Final = "clicks-only"
MISSES_LATE: Final = "misses-late"
MISSES_NEVER: Final = "misses-never"
WORDS: Final = {
    ALL: "every visit reported at once",
    CLICKS_ONLY: "clicks only, misses by default after {:g} s",
    MISSES_LATE: "misses reported after {:g} s",
    MISSES_NEVER: "clicks only, misses never learned",
}

RATE: Final = 100.0  # visits a second of each policy
WAIT_SECONDS: Final = 2.0


def implied(given: dict[str, Any]) -> dict[str, Any]:
    """Return what a run at a rate implies where nothing else was asked for.

    Raises UsageError for what a run at a rate cannot do.
    """
    told_at_once = given.get("reporting", ALL) == ALL
    if told_at_once and "wait_seconds" in given:
        raise UsageError("--wait-seconds is for --clicks-only and what is compared with it")
    if told_at_once and "rate" not in given:
        return {}
    if given.get("wait_for_training"):
        raise UsageError(
            "--wait-for-training holds visits back, and a run at a rate never does; "
            "leave out one of them"
        )
    at_a_rate: dict[str, Any] = {"wait_for_training": False}
    return at_a_rate if told_at_once else at_a_rate | {"rate": RATE, "wait_seconds": WAIT_SECONDS}


def check(run: Run) -> None:
    """UsageError where the run's world has no reward that every miss would bring."""
    if run.reporting != ALL and world_of(run).miss is None:
        why = (
            "a visit that the log does not match is no miss"
            if run.world == "logged"
            else "rewards differ where nothing is clicked"
        )
        raise UsageError(f"--{run.reporting} is not for this world: {why}")


def rules(run: Run) -> dict[str, Any]:
    """Return what the experiment's reward rules have to be for the run."""
    if run.reporting == CLICKS_ONLY:
        return {"default": world_of(run).miss, "wait_seconds": run.wait_seconds}
    return {} if run.reporting == ALL else {"default": None}


def definition(run: Run) -> dict[str, Any]:
    defined = world_of(run).definition(run.policies, run.own)
    return defined | {"reward": defined["reward"] | rules(run)}


def check_rules(run: Run, defined: dict[str, Any]) -> None:
    """UsageError where an experiment that is there already has other reward rules."""
    for name, wanted in rules(run).items():
        there = defined["reward"].get(name)
        if there != wanted:
            raise UsageError(
                f"experiment {run.experiment!r} has reward.{name} {there}, and --{run.reporting} "
                f"needs {wanted}; take another --experiment"
            )


def in_words(run: Run) -> str:
    """Say how rewards were reported, without a full stop."""
    return WORDS[run.reporting].format(run.wait_seconds)


def owed(run: Run, visits: Iterable[Record]) -> int:
    """Rewards that the service has to have counted for these visits once none is open."""
    return sum(v.settled for v in visits if v.clicks or run.reporting != MISSES_NEVER)
