"""forage evaluate: what a policy would have earned on the log."""

import json
import sys
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import BadParameter, Option

from service.cli.help import Leaf
from service.cli.interrupts import INTERRUPTED
from service.cli.running import Command, progress
from service.cli.values import Names, names, seconds
from service.errors import ConfigurationError, Refused

if TYPE_CHECKING:
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
    """`--json` alone prints it; Typer has no option whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        filled = []
        for given, following in zip_longest(args, args[1:], fillvalue="--"):
            filled.append(given)
            if given == "--json" and following != "-" and following.startswith("-"):
                filled.append("-")
        return super().parse_args(ctx, filled)


def run(
    settings: "Settings",
    experiment: str | None = Option(None, metavar="NAME", help="(the only one)"),
    policies: Names | None = Option(
        None, parser=_policies, metavar="A,B", help="live policies (all; with --definition: none)"
    ),
    definition: Path | None = Option(
        None,
        metavar="FILE",
        help="TOML or JSON with policies that never ran, as in an experiment's file",
    ),
    since: float | None = Option(
        None, parser=seconds, metavar="TIME", help="decisions from then on, ISO 8601 (UTC)"
    ),
    until: float | None = Option(
        None, parser=seconds, metavar="TIME", help="decisions before then"
    ),
    decisions: int | None = Option(None, min=1, metavar="N", help="the newest N of them (all)"),
    policy_logged: Names | None = Option(
        None,
        parser=_policies,
        metavar="A,B",
        help="decisions of these policies alone (of any); implies --own-propensity",
    ),
    frozen: bool = Option(
        False,
        "--frozen",
        help="policies as they stood before the first of the decisions; with no other choice "
        "of them: learned on the first half, evaluated on the other (as they learned)",
    ),
    own_propensity: bool = Option(
        False,
        "--own-propensity",
        help="weights by the assigned policy's propensity, where chance assigned it, too",
    ),
    first_slot: bool = Option(
        False,
        "--first-slot",
        help="of decisions of several arms, the value of their first slot (they are refused)",
    ),
    confidence: float = Option(0.95, parser=_share, metavar="P", help="of the intervals"),
    least_effective: float | None = Option(
        None, metavar="N", help="effective sample size below which there is no estimate (50)"
    ),
    most_unsupported: float | None = Option(
        None, metavar="P", help="share of a policy without support above which there is none (0.01)"
    ),
    report: Path | None = Option(
        None,
        "--json",
        metavar="[PATH]",
        help="print JSON in place of the table; with PATH: write it there as well",
    ),
) -> int:
    """Evaluate, and print a table or JSON."""
    import uvloop

    from service.evaluation.evaluate import evaluate_store
    from service.evaluation.request import EvaluationRequest, Selection
    from service.evaluation.targets import read_definitions

    given = {"least_effective": least_effective, "most_unsupported": most_unsupported}
    bounds = {name: value for name, value in given.items() if value is not None}
    request = EvaluationRequest(
        experiment=experiment,
        policies=policies,
        definitions=read_definitions(definition) if definition else {},
        selection=Selection(
            since, until, decisions, None if policy_logged is None else frozenset(policy_logged)
        ),
        freeze=frozen,
        own=own_propensity,
        first_slot=first_slot,
        confidence=confidence,
        **bounds,
    )
    try:
        with progress() as say:
            work = evaluate_store(settings.store, request, say)
            found = uvloop.run(work)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refused as fault:
        raise ConfigurationError(fault.detail) from fault
    _print(found, report)
    return 1 if any(each.refused for each in found.policies) else 0


def _print(found: Any, path: Path | None) -> None:
    from service.evaluation.report import as_json, table

    content = json.dumps(as_json(found), indent=2)
    if path == STDOUT:
        sys.stdout.write(content + "\n")
        return
    print(table(found))
    if path is not None:
        try:
            path.write_text(content + "\n", encoding="utf-8")
        except OSError as fault:
            raise ConfigurationError(f"{path}: {fault.strerror}") from fault


COMMAND = Command(
    "estimate what a policy would have earned on the log",
    run,
    description="Estimate the reward a decision that policies would have earned on the log, live "
    "ones or definitions that never ran: IPS, SNIPS, doubly robust and switch, with intervals. The "
    "log is folded from its beginning and each decision is evaluated under the state that it was "
    "made at, so no policy has seen the rewards it is judged by. Where the log cannot tell, it "
    "says so and gives no number. The store is only read; a service may be at work on it. "
    "docs/evaluation.md explains.",
    epilog="Exit status: 0 where every policy has an estimate, 1 where one has none or the store "
    "cannot be read.",
    example="forage evaluate --experiment shop --policies lints,linucb\n"
    "forage evaluate --definition ideas.toml --since 2026-01-01 --json found.json",
    group="Learn and compare",
    parser=_Parser,
)
