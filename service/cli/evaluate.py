"""forage evaluate: what a policy would have earned on the log."""

from pathlib import Path
from typing import Annotated, Any

import uvloop
from typer import BadParameter, Option

from service.cli.options import Names, OnlyExperiment, StoreUrl, names, seconds
from service.cli.running import progress, read_settings, write_json
from service.errors import ConfigurationError, Refused

STDOUT = Path("-")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise BadParameter("give a share above 0 and below 1")
    return share


def evaluate(
    experiment: OnlyExperiment = None,
    policies: Annotated[
        Names | None,
        Option(parser=names, metavar="A,B", help="Live policies (all; with --definition: none)."),
    ] = None,
    shadows: Annotated[
        bool,
        Option(
            "--shadows",
            help="The experiment's shadows, each on the decisions since it is as it is; intervals "
            "hold at all times at once.",
        ),
    ] = False,
    definition: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="TOML or JSON with policies that never ran, as in an experiment file.",
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="TOML or JSON with rules, as in an experiment file, that the policies are to keep "
            "beside, or in place of, those of the experiment; in JSON null takes a rule away.",
        ),
    ] = None,
    since: Annotated[
        float | None,
        Option(parser=seconds, metavar="TIME", help="Decisions from then on, ISO 8601 (UTC)."),
    ] = None,
    until: Annotated[
        float | None, Option(parser=seconds, metavar="TIME", help="Decisions before then.")
    ] = None,
    decisions: Annotated[
        int | None, Option(min=1, help="The newest N of these decisions (all).")
    ] = None,
    policy_logged: Annotated[
        Names | None,
        Option(
            parser=names,
            metavar="A,B",
            help="Decisions of these policies alone (of any); implies --own-propensity.",
        ),
    ] = None,
    frozen: Annotated[
        bool,
        Option(
            "--frozen",
            help="Policies as they were before the first of the decisions; where no option selects "
            "decisions: learned on the first half, evaluated on the other (as they learned).",
        ),
    ] = False,
    own_propensity: Annotated[
        bool,
        Option(
            "--own-propensity",
            help="Weight by the assigned policy's propensity, where chance assigned it, too.",
        ),
    ] = False,
    first_slot: Annotated[
        bool,
        Option(
            "--first-slot",
            help="Evaluate the first slot of decisions of several arms (they are refused).",
        ),
    ] = False,
    every: Annotated[
        bool, Option("--all", help="Print every estimator, not the doubly robust one alone.")
    ] = False,
    confidence: Annotated[float, Option(parser=_share, help="Confidence of the intervals.")] = 0.95,
    least_effective: Annotated[
        float | None,
        Option(help="Effective sample size below which there is no estimate (50)."),
    ] = None,
    most_unsupported: Annotated[
        float | None,
        Option(
            help="Share of a policy without support above which there is no estimate (0.01).",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        Option(
            "--json",
            metavar="FILE",
            help="Write the result here as well, as JSON; -: print JSON in place of the table.",
        ),
    ] = None,
    store: StoreUrl = None,
) -> int:
    """Estimate what a policy would have earned on the log.

    Estimate the reward per decision of live policies, shadows, or definitions that never ran, and
    how much more than the log that is: the best first, doubly robust, with intervals. The log is
    folded from its beginning and each decision is evaluated under the state that made it, so no
    policy has seen the rewards that judge it. Where the log does not suffice, it says so and gives
    no number. The store is only read; a service may be running on it. docs/evaluation.md explains.

    Exit status: 0 where every policy has an estimate, 1 where one has none or the store cannot be
    read.

        forage evaluate --experiment shop --policies lints,linucb
        forage evaluate --experiment shop --definition ideas.toml --json found.json
        forage evaluate --experiment shop --policies lints --rules cap.toml
    """
    from service.analysis.evaluate import evaluate_store
    from service.analysis.evaluation_report import table
    from service.analysis.request import EvaluationRequest, Selection
    from service.analysis.targets import read_definitions, read_rules
    from service.log.reading import Progress

    settings = read_settings(store=store)
    logged = None if policy_logged is None else frozenset(policy_logged)
    given = {"least_effective": least_effective, "most_unsupported": most_unsupported}
    bounds: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    request = EvaluationRequest(
        experiment=experiment,
        policies=policies,
        shadows=shadows,
        definitions=read_definitions(definition) if definition else {},
        rules=read_rules(rules) if rules else {},
        selection=Selection(since, until, decisions, logged),
        freeze=frozen,
        own=own_propensity,
        first_slot=first_slot,
        confidence=confidence,
        **bounds,
    )
    try:
        with progress() as say:
            result = uvloop.run(evaluate_store(settings.store, request, Progress(say)))
    except Refused as fault:
        raise ConfigurationError(fault.detail) from fault
    if report == STDOUT:
        print(result.model_dump_json(indent=2))
    else:
        print(table(result, every=every))
        write_json(report, result.model_dump(mode="json"))
    return 1 if any(policy.refused for policy in result.policies) else 0
