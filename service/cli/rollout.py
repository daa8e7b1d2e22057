"""forage rollout: let a policy take over the traffic of another in stages."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from service.cli.history import ExperimentName
from service.cli.options import AsJson, ServiceUrl
from service.cli.running import read_settings
from service.tables import aligned, figure

if TYPE_CHECKING:
    from service.offline.rollout_client import (
        ListedBudget,
        ListedForecast,
        ListedGuardrail,
        ListedRollout,
        ListedValue,
    )

_ENDING = """

Exit status: 0, or 1 where the service refuses or does not answer.

    forage rollout {step} shop new --reason "the team agreed"
"""
STEP_HELP = {
    "advance": "Advance a rollout to its next stage; the last one ends it." + _ENDING,
    "hold": "Hold a rollout at its stage. It is still taken back if it loses." + _ENDING,
    "resume": "Let a held rollout go on, with all its days before it. At this stage a guardrail "
    "that held it only warns." + _ENDING,
    "back": "Give the traffic back to the baseline: the rollout is over." + _ENDING,
}
"""Help of the commands that take a step, by the step."""

ChallengerName = Annotated[
    str, Argument(metavar="POLICY", help="The policy that takes over: the challenger.")
]


class Shares(list[float]):
    """Shares of the traffic. A class of its own, as Typer takes a list for an option that
    repeats."""


def _shares(text: str) -> Shares:
    say = "write percentages that ascend to 100, as 5,20,50,100"
    try:
        found = [float(part.strip().removesuffix("%")) for part in text.split(",")]
    except ValueError as fault:
        raise BadParameter(say) from fault
    ascends = all(before < after for before, after in pairwise([0.0, *found]))
    if not ascends or found[-1] != 100:
        raise BadParameter(say)
    return Shares(percent / 100 for percent in found)


def _percent(text: str) -> float:
    written, say = text.strip(), "write a percentage with its sign, as 10%"
    if not written.endswith("%"):
        raise BadParameter(say)
    try:
        return float(written.removesuffix("%")) / 100
    except ValueError as fault:
        raise BadParameter(say) from fault


Baseline = Annotated[
    str, Option("--over", metavar="BASELINE", help="The policy whose traffic it takes over.")
]
StagesOption = Annotated[
    Shares | None,
    Option("--stages", metavar="PERCENT,...", parser=_shares, help="As 5,20,50,100."),
]
MarginOption = Annotated[
    float | None,
    Option(
        "--margin",
        metavar="PERCENT",
        parser=_percent,
        help="Percent of the baseline's reward that it may lose, as 10%.",
    ),
]
HoursOption = Annotated[
    float | None, Option("--hours", metavar="HOURS", min=0, help="Least hours of a stage.")
]
DaysOption = Annotated[
    float | None,
    Option("--undecided-after", metavar="DAYS", help="Days above 0 without an outcome until:"),
]
OnUndecidedOption = Annotated[
    Literal["ask", "ship", "back"] | None,
    Option("--on-undecided", help="Ask a person, ship the challenger, or go back."),
]
AskOption = Annotated[
    bool | None, Option("--ask/--no-ask", help="Let a person confirm each stage.")
]
ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Why: the log keeps it.")]


def forecast(
    experiment: ExperimentName,
    policy: ChallengerName,
    over: Baseline,
    stages: StagesOption = None,
    margin: MarginOption = None,
    hours: HoursOption = None,
    undecided_after: DaysOption = None,
    url: ServiceUrl = None,
) -> int:
    """Say how long each stage of a rollout would take, and what the policy would have earned on the
    log. Start nothing.

    Exit status: 0, or 1 where the rollout cannot end before it counts as undecided, or the service
    refuses.

        forage rollout forecast shop new --over main
        forage rollout forecast shop new --over main --margin 5%
    """
    from service.offline.rollout_client import forecast_rollout

    body = _body(policy, over, stages, margin, hours, undecided_after)
    planned = forecast_rollout(experiment, body, read_settings(url=url))
    print("\n".join([*_forecast_lines(planned.forecast), *_value_lines(planned.value)]))
    return int(planned.forecast is not None and planned.forecast.cannot_end)


def start(
    experiment: ExperimentName,
    policy: ChallengerName,
    over: Baseline,
    stages: StagesOption = None,
    margin: MarginOption = None,
    hours: HoursOption = None,
    undecided_after: DaysOption = None,
    on_undecided: OnUndecidedOption = None,
    ask: AskOption = None,
    reason: ReasonOption = "",
    url: ServiceUrl = None,
) -> int:
    """Start to roll a policy out in place of another.

    What is left out is as the definition's [rollout] says. Where the log says that the policy would
    have lost more than the margin, a warning says so. FORAGE_KEY is the key, with the scope admin.

    Exit status: 0, or 1 where the service refuses or does not answer.

        forage rollout start shop new --over main
        forage rollout start shop new --over main --stages 10,50,100 --margin 5% --ask
    """
    from service.offline.rollout_client import start_rollout

    body = _body(policy, over, stages, margin, hours, undecided_after)
    more = {"on_undecided": on_undecided, "ask": ask, "reason": reason}
    body |= {name: value for name, value in more.items() if value is not None}
    print("\n".join(_lines(start_rollout(experiment, body, read_settings(url=url)))))
    return 0


def status(experiment: ExperimentName, as_json: AsJson = False, url: ServiceUrl = None) -> int:
    """Say where the rollouts of an experiment and its loss budget stand.

    Exit status: 0, or 1 where the service refuses or does not answer.

        forage rollout status shop
    """
    from service.offline.rollout_client import ask_rollouts

    content, found = ask_rollouts(experiment, read_settings(url=url))
    if as_json:
        print(content.decode())
    else:
        lines = [line for each in found.rollouts for line in _lines(each)]
        lines += [] if found.budget is None else _budget_lines(found.budget)
        print("\n".join(lines) if lines else f"{experiment}: no rollout")
    return 0


def step_command(step: str) -> Callable[..., int]:
    """Return the command of a step that a person may take."""

    def command(
        experiment: ExperimentName,
        policy: ChallengerName,
        reason: ReasonOption = "",
        url: ServiceUrl = None,
    ) -> int:
        from service.offline.rollout_client import step_rollout

        found = step_rollout(experiment, policy, step, reason, read_settings(url=url))
        print("\n".join(_lines(found)))
        return 0

    command.__doc__ = STEP_HELP[step].format(step=step)
    return command


def _body(
    policy: str,
    over: str,
    stages: Shares | None,
    margin: float | None,
    hours: float | None,
    undecided_after: float | None,
) -> dict[str, Any]:
    given = {
        "policy": policy,
        "baseline": over,
        "stages": stages,
        "margin": margin,
        "stage_hours": hours,
        "undecided_after_days": undecided_after,
    }
    return {name: value for name, value in given.items() if value is not None}


def _lines(rollout: "ListedRollout") -> list[str]:
    """Show a rollout: stages, the sentence, the interval against the margin, the forecast."""
    stages = [
        f"[{100 * share:g}%]" if place == rollout.stage else f"{100 * share:g}%"
        for place, share in enumerate(rollout.stages)
    ]
    state = rollout.state.replace("_", " ")
    lines = [f"{rollout.challenger} over {rollout.baseline}: {state}, {' '.join(stages)}"]
    lines += [f"  {rollout.sentence}"] * bool(rollout.sentence)
    lines += [f"  Warning: {rollout.warning}"] * bool(rollout.warning)
    if (seen := rollout.figures) and None not in (seen.difference, *seen.interval, seen.margin):
        low, high = seen.interval
        lines.append(
            f"  difference {seen.difference:+.3g} [{low:+.3g}, {high:+.3g}] at any time, "
            f"against a margin of -{seen.margin:.3g}"
        )
    if rollout.figures is not None:
        lines += [f"  {line}" for line in _forecast_lines(rollout.forecast)]
    lines += [f"  {line}" for line in _guardrail_lines(rollout.guardrails)]
    return lines


def _guardrail_lines(found: "list[ListedGuardrail]") -> list[str]:
    if not found:
        return []
    rows = [["guardrail", "state", "value", "bound", "decisions"]]
    for each in found:
        name = each.segment and f" {each.segment}"
        value, bound = ("" if it is None else figure(it) for it in (each.value, each.bound))
        rows.append([f"{each.guardrail}{name}", each.state, value, bound, f"{each.decisions:,}"])
    return aligned(rows)


def _budget_lines(budget: "ListedBudget") -> list[str]:
    least = f"never below {budget.policy} by more than {100 * budget.by:g}%"
    return [f"{least}: the others may have {100 * budget.share:.3g}%", f"  {budget.sentence}"]


def _forecast_lines(found: "ListedForecast | None") -> list[str]:
    if found is None:
        return ["no forecast: the baseline has too few settled decisions"]
    rows = [["share", "an equal one advances after", "own decisions", "a loser goes back after"]]
    rows += [
        [
            f"{100 * stage.share:g}%",
            _duration(stage.advance_seconds),
            "never" if (own := stage.advance_own[0]) is None else f"{own:,.0f}",
            _duration(stage.stop_seconds),
        ]
        for stage in found.stages
    ]
    end = f"in all some {_duration(found.seconds)} for an equal policy, at today's traffic"
    if found.cannot_end:
        end = (
            "it cannot end before it counts as undecided: give it a larger margin or first stage, "
            "or more days"
        )
    return [*aligned(rows), end]


def _value_lines(value: "ListedValue") -> list[str]:
    lines = ["", value.sentence]
    if value.support is not None and value.effective_sample_size is not None:
        lines.append(
            f"{value.decisions:,} decisions, which tell as much as "
            f"{value.effective_sample_size:,.0f} of its own; the log could have shown "
            f"{100 * value.support:.3g}% of what it would show"
        )
    return lines


def _duration(seconds: float | None) -> str:
    from service.state.rollout import DAY_S, HOUR_S

    if seconds is None:
        return "never"
    if seconds < 2 * DAY_S:
        return f"{figure(seconds / HOUR_S)} hours"
    return f"{figure(seconds / DAY_S)} days"
