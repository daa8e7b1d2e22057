"""forage evaluate: what a policy would have earned on the log."""

import json
from functools import partial
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import Annotated, Any

import uvloop
from typer import BadParameter, Option

from service.cli.help import Leaf
from service.cli.options import Names, OnlyExperiment, names, seconds
from service.cli.running import Command, progress, write_json
from service.errors import ConfigurationError, Refused
from service.settings import Settings

STDOUT = Path("-")


def _policies(text: str) -> Names:
    if not (found := names(text)):
        raise BadParameter("name at least one policy")
    return found


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = nan
    if not 0 < share < 1:
        raise BadParameter("a share is above 0 and below 1")
    return share


class _Parser(Leaf):
    """`--json` alone prints; Typer has no option with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled = []
        for given, following in zip_longest(args, args[1:], fillvalue="--"):
            filled.append(given)
            if given == "--json" and following != "-" and following.startswith("-"):
                filled.append("-")
        return super().parse_args(ctx, filled)


@partial(
    Command,
    summary="estimate what a policy would have earned on the log",
    epilog="Exit status: 0 where every policy has an estimate, 1 where one has none or the store "
    "cannot be read.",
    example="forage evaluate --experiment shop --policies lints,linucb\n"
    "forage evaluate --definition ideas.toml --since 2026-01-01 --json found.json",
    parser=_Parser,
)
def command(
    settings: Settings,
    experiment: OnlyExperiment = None,
    policies: Annotated[
        Names | None,
        Option(
            parser=_policies, metavar="A,B", help="live policies (all; with --definition: none)"
        ),
    ] = None,
    definition: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="TOML or JSON with policies that never ran, as in an experiment's file",
        ),
    ] = None,
    since: Annotated[
        float | None,
        Option(parser=seconds, metavar="TIME", help="decisions from then on, ISO 8601 (UTC)"),
    ] = None,
    until: Annotated[
        float | None, Option(parser=seconds, metavar="TIME", help="decisions before then")
    ] = None,
    decisions: Annotated[
        int | None, Option(min=1, metavar="N", help="the newest N of them (all)")
    ] = None,
    policy_logged: Annotated[
        Names | None,
        Option(
            parser=_policies,
            metavar="A,B",
            help="decisions of these policies alone (of any); implies --own-propensity",
        ),
    ] = None,
    frozen: Annotated[
        bool,
        Option(
            "--frozen",
            help="policies as they stood before the first of the decisions; with no other choice "
            "of them: learned on the first half, evaluated on the other (as they learned)",
        ),
    ] = False,
    own_propensity: Annotated[
        bool,
        Option(
            "--own-propensity",
            help="weights by the assigned policy's propensity, where chance assigned it, too",
        ),
    ] = False,
    first_slot: Annotated[
        bool,
        Option(
            "--first-slot",
            help="of decisions of several arms, the value of their first slot (they are refused)",
        ),
    ] = False,
    confidence: Annotated[
        float, Option(parser=_share, metavar="P", help="of the intervals")
    ] = 0.95,
    least_effective: Annotated[
        float | None,
        Option(metavar="N", help="effective sample size below which there is no estimate (50)"),
    ] = None,
    most_unsupported: Annotated[
        float | None,
        Option(
            metavar="P", help="share of a policy without support above which there is none (0.01)"
        ),
    ] = None,
    report: Annotated[
        Path | None,
        Option(
            "--json",
            metavar="[PATH]",
            help="print JSON in place of the table; with PATH: write it there as well",
        ),
    ] = None,
) -> int:
    """Estimate the reward a decision that policies would have earned on the log, live ones or
    definitions that never ran: IPS, SNIPS, doubly robust and switch, with intervals. The log is
    folded from its beginning and each decision is evaluated under the state that it was made at, so
    no policy has seen the rewards it is judged by. Where the log cannot tell, it says so and gives
    no number. The store is only read; a service may be at work on it. docs/evaluation.md explains.
    """
    from service.evaluation.evaluate import evaluate_store
    from service.evaluation.report import as_json, table
    from service.evaluation.request import EvaluationRequest, Selection
    from service.evaluation.targets import read_definitions

    logged = None if policy_logged is None else frozenset(policy_logged)
    given = {"least_effective": least_effective, "most_unsupported": most_unsupported}
    bounds = {name: value for name, value in given.items() if value is not None}
    request = EvaluationRequest(
        experiment=experiment,
        policies=policies,
        definitions=read_definitions(definition) if definition else {},
        selection=Selection(since, until, decisions, logged),
        freeze=frozen,
        own=own_propensity,
        first_slot=first_slot,
        confidence=confidence,
        **bounds,
    )
    try:
        with progress() as say:
            work = evaluate_store(settings.store, request, say)
            result = uvloop.run(work)
    except Refused as fault:
        raise ConfigurationError(fault.detail) from fault
    if report == STDOUT:
        print(json.dumps(as_json(result), indent=2))
    else:
        print(table(result))
        write_json(report, as_json(result))
    return 1 if any(policy.refused for policy in result.policies) else 0
