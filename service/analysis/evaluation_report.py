"""An evaluation as a sentence and as a table."""

from service.analysis.evaluation_answer import EvaluationAnswer, PolicyEvaluation
from service.analysis.intervals import Interval
from service.tables import aligned, figure

FIRST_SLOT = "reward_of_first_slot"


def sentence(found: EvaluationAnswer) -> str:
    """Say what to conclude, and what to do where the log cannot tell."""
    told = [each for each in found.policies if not each.refused]
    if found.shadows and not found.policies:
        return (
            "No policy is a shadow. Give one `shadow = true`, and this tells what it would have "
            "earned."
        )
    if not found.decisions:
        return "The log has no decision to evaluate on yet."
    if not told or found.logged.value is None:
        own = ", ".join(f"{name} {mean:.3g}" for name, mean in found.earned_by.items())
        return (
            "The log cannot tell what these policies would have earned. On their own decisions "
            f"policies earned: {own}. `forage verdict` compares policies that share the traffic."
        )
    best, confidence = told[0], f"{found.confidence:.0%}".replace("%", " percent")
    if found.shadows:
        confidence += ", valid at any time"
    interval = over(found, best)
    assert interval is not None
    low, high = interval
    assert best.logged is not None
    ran, name = f"what ran ({best.logged:.3g} a decision)", f"`{best.policy}`"
    if low > 0:
        much = f"{_much(low, best)} to {_much(high, best)}{_unit(best)}"
        return f"{name} would have earned {much} more than {ran}, at {confidence}."
    ends = " and ".join(
        f"{_much(abs(end), best)}{_unit(best)} {'less' if end < 0 else 'more'}"
        for end in (low, high)
    )
    if len(told) == 1:
        return f"{name} would have earned between {ends} than {ran}, at {confidence}."
    return (
        f"No policy would surely have earned more than {ran}: the best of them, {name}, between "
        f"{ends}, at {confidence}."
    )


def over(found: EvaluationAnswer, value: PolicyEvaluation) -> Interval | None:
    """Return the interval to show of a policy's difference to the log: of shadows, which people
    look at again and again, the one that holds at all times at once."""
    return value.uplift_anytime if found.shadows else value.uplift_interval


def _unit(value: PolicyEvaluation) -> str:
    return " percent" if value.logged and value.logged > 0 else ""


def _much(end: float, value: PolicyEvaluation) -> str:
    return figure(100 * end / value.logged if value.logged and value.logged > 0 else end)


def table(found: EvaluationAnswer, *, every: bool = False) -> str:
    """Return the answer in a sentence and a line for each policy; every: and each estimator."""
    lines = [found.sentence, "", _head(found)]
    first_slot = found.metric == FIRST_SLOT
    if found.logged.value is not None:
        who = "The first slots of the log" if first_slot else "The log itself"
        lines.append(f"{who} earned {found.logged.value:.4f} {_text(found.logged.interval)}.")
    percent, metric = f"{found.confidence:.0%}", "slot 1" if first_slot else "reward"
    if every:
        lines.append(f"{'; '.join(map(_learned, found.policies))}.")
        rows = [["policy", "estimator", metric, percent, "ESS", "weight"]]
        for value in found.policies:
            rows += _rows(value)
    else:
        rows = [["policy", metric, percent, "over what ran", percent, "learned from"]]
        if found.shadows:
            rows[0] += ["decisions", "effective", "SNIPS"]
        rows += [_row(found, value) for value in found.policies if value.estimates]
    if len(rows) > 1:
        lines += ["", *aligned(rows)]
    for value in found.policies:
        if value.refused:
            lines += ["", f"{value.policy}: no estimate. {_sentence(value.refused)}"]
        elif value.unsupported:
            lines += [
                "",
                f"{value.policy}: {value.unsupported:.2%} of what it would show had no chance in "
                "the log, and counts as worth 0 in IPS.",
            ]
    if notes := _notes(found):
        lines += ["", *notes]
    return "\n".join(lines)


def _learned(value: PolicyEvaluation) -> str:
    if value.learned_from is None:
        return f"{value.policy} does not learn"
    return f"{value.policy} learned from {value.learned_from:,} rewards"


def _row(found: EvaluationAnswer, value: PolicyEvaluation) -> list[str]:
    one = value.estimates["dr"]
    learned = "does not learn" if value.learned_from is None else f"{value.learned_from:,} rewards"
    row = [
        value.policy,
        f"{one.value:.4f}",
        _text(value.anytime_interval if found.shadows else one.interval),
        f"{value.uplift:+.4f}",
        _text(over(found, value)),
        learned,
    ]
    if found.shadows:
        row += [
            f"{value.decisions:,}",
            f"{value.effective_sample_size:,.0f}",
            f"{value.estimates['snips'].value:.4f}",
        ]
    return row


def _head(found: EvaluationAnswer) -> str:
    by = ", ".join(f"{policy} {count:,}" for policy, count in found.logged_by.items())
    when = f" from {found.since} to {found.until}" if found.since else ""
    how = "as they stood before" if found.frozen else "as they learned"
    return (
        f"{found.experiment}: {found.decisions:,} decisions{when}"
        f"{f' ({by})' if by else ''}; policies {how}."
    )


def _rows(value: PolicyEvaluation) -> list[list[str]]:
    rows, policy = list[list[str]](), value.policy
    size = [f"{value.effective_sample_size:,.0f}", f"{value.largest_weight:,.1f}"]
    for one in value.estimates.values():
        rows.append([policy, one.title, f"{one.value:.4f}", _text(one.interval), *size])
        policy, size = "", ["", ""]
    if value.anytime_interval is not None:
        dr = value.estimates["dr"].value
        rows.append(["", "DR, any time", f"{dr:.4f}", _text(value.anytime_interval), "", ""])
    if value.direct_method is not None:
        rows.append(["", "DM", f"{value.direct_method:.4f}", "no interval", "", ""])
    return rows


def _text(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.4f}, {interval.high:.4f}]"


def _notes(found: EvaluationAnswer) -> list[str]:
    notes = []
    if found.slates:
        notes.append(_of_slates(found))
    if found.shortlists:
        notes.append(
            f"{found.shortlists:,} decisions chose from arms that their policy had retrieved: "
            "what is estimated of it holds for those."
        )
    if found.without_probabilities:
        notes.append(
            f"Of {found.without_probabilities:,} imported decisions only the shown arm's chance is "
            "known: what the log could not have shown cannot be told."
        )
    if found.erased:
        notes.append(f"{found.erased:,} events were erased: policies learned here without them.")
    notes += [f"{count:,} left out: {why}." for why, count in found.left_out.items()]
    return notes


def _of_slates(found: EvaluationAnswer) -> str:
    share = f"{found.slates / found.decisions:.1%}"
    some = f"{found.slates:,} of {found.decisions:,} decisions ({share}) showed several arms"
    if found.metric == FIRST_SLOT:
        return f"{some}: all values are of slot 1, and no reward of the slots below is in them."
    return f"{some}. --first-slot estimates what their first slot earns."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
