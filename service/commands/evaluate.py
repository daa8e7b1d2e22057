"""forage evaluate: what a policy would have earned on the log."""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from service.commands.running import Command, progress
from service.errors import ConfigurationError, Refused
from service.interrupts import INTERRUPTED
from service.settings import Settings

SAY_SECONDS = 0.2
BAR = 24
STDOUT = Path("-")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--experiment", metavar="NAME", help="(the only one)")
    parser.add_argument(
        "--policies",
        type=_names,
        metavar="A,B",
        help="live policies (all; with --definition: none)",
    )
    parser.add_argument(
        "--definition",
        type=Path,
        metavar="FILE",
        help="TOML or JSON with policies that never ran, as in an experiment's file",
    )
    parser.add_argument(
        "--since", type=_time, metavar="TIME", help="decisions from then on, ISO 8601 (UTC)"
    )
    parser.add_argument("--until", type=_time, metavar="TIME", help="decisions before then")
    parser.add_argument(
        "--decisions", type=_positive, metavar="N", help="the newest N of them (all)"
    )
    parser.add_argument(
        "--policy-logged",
        type=_names,
        metavar="A,B",
        help="decisions of these policies alone (of any); implies --own-propensity",
    )
    parser.add_argument(
        "--frozen",
        action="store_true",
        help="policies as they stood before the first of the decisions; with no other choice of "
        "them: learned on the first half, evaluated on the other (as they learned)",
    )
    parser.add_argument(
        "--own-propensity",
        action="store_true",
        help="weights by the assigned policy's propensity, where chance assigned it, too",
    )
    parser.add_argument(
        "--first-slot",
        action="store_true",
        help="of decisions of several arms, the value of their first slot (they are refused)",
    )
    parser.add_argument(
        "--confidence", type=_share, default=0.95, metavar="P", help="of the intervals (0.95)"
    )
    parser.add_argument(
        "--least-effective",
        type=float,
        metavar="N",
        help="effective sample size below which there is no estimate (50)",
    )
    parser.add_argument(
        "--most-unsupported",
        type=float,
        metavar="P",
        help="share of a policy without support above which there is none (0.01)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=STDOUT,
        metavar="PATH",
        help="print JSON in place of the table; with PATH: write it there as well",
    )


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ArgumentTypeError("name at least one policy")
    return names


def _time(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as fault:
        raise ArgumentTypeError("write it as 2026-01-31 or 2026-01-31T12:00:00Z") from fault
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise ValueError(text)
    return share


def run(settings: Settings, options: dict[str, Any]) -> int:
    """Evaluate, and print a table or JSON."""
    import uvloop

    from service.evaluation import evaluate
    from service.evaluation.rows import Selection
    from service.evaluation.targets import read_definitions

    path: Path | None = options["definition"]
    logged_by: list[str] | None = options["policy_logged"]
    bounds = {
        name: options[name]
        for name in ("least_effective", "most_unsupported")
        if options[name] is not None
    }
    request = evaluate.Request(
        experiment=options["experiment"],
        policies=options["policies"],
        definitions=read_definitions(path) if path else {},
        selection=Selection(
            options["since"],
            options["until"],
            options["decisions"],
            None if logged_by is None else frozenset(logged_by),
        ),
        freeze=options["frozen"],
        own=options["own_propensity"],
        first_slot=options["first_slot"],
        confidence=options["confidence"],
        **bounds,
    )
    try:
        with progress() as say:
            work = evaluate.evaluate_store(settings.store, request, _bar(say) if say else None)
            found = uvloop.run(work)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Refused as fault:
        raise ConfigurationError(fault.detail) from fault
    _print(found, options["json"])
    return 1 if any(each.refused for each in found.policies) else 0


def _bar(say: Callable[[str], None]) -> Callable[[str, int, int | None], None]:
    """How far it is, a few times a second."""
    said = -inf

    def tell(doing: str, done: int, of: int | None) -> None:
        nonlocal said
        if monotonic() < said + SAY_SECONDS:
            return
        said = monotonic()
        if of is None:
            say(f"{doing}: {done:,}")
        else:
            full = BAR * done // of
            say(f"{doing}: {'█' * full}{'░' * (BAR - full)} {done / of:.0%} of {of:,}")

    return tell


def _print(found: Any, path: Path | None) -> None:
    from service.evaluation import report

    content = json.dumps(report.as_json(found), indent=2)
    if path == STDOUT:
        sys.stdout.write(content + "\n")
        return
    print(report.table(found))
    if path is not None:
        try:
            path.write_text(content + "\n", encoding="utf-8")
        except OSError as fault:
            raise ConfigurationError(f"{path}: {fault.strerror}") from fault


COMMAND = Command(
    "estimate what a policy would have earned on the log",
    add_options,
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
)
