"""The reader of PromQL that holds dashboard and rules to /metrics sees what is not there."""

import pytest

from tests.support.promql import Exposed, reading

EXPOSED = Exposed({"hits_total": {"route", "status"}, "took_seconds_bucket": {"le", "stage"}})


@pytest.mark.parametrize(
    ("expression", "metrics", "matched", "grouped"),
    [
        ("up == 0", {"up"}, set(), set()),
        ('rate(a_total{x=~"b{c}", y!="d"}[5m])', {"a_total"}, {"x", "y"}, set()),
        (
            "sum by (le, stage) (rate(a_bucket[$__rate_interval]))",
            {"a_bucket"},
            set(),
            {"le", "stage"},
        ),
        ("a - on (x) group_left (y) b offset 5m", {"a", "b"}, set(), {"x", "y"}),
        ("max(a) by (z) unless on() b > 1e12", {"a", "b"}, set(), {"z"}),
        ('histogram_quantile(0.99, a{i=~"$experiment"}) or vector(0)', {"a"}, {"i"}, set()),
        ("a > bool 3 and b[5m:1m]", {"a", "b"}, set(), set()),
    ],
)
def test_metrics_and_labels_are_found(
    expression: str, metrics: set[str], matched: set[str], grouped: set[str]
) -> None:
    found = reading(expression)
    assert (found.metrics, found.grouped) == (metrics, grouped)
    assert set().union(*found.matched.values()) == matched


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(hit_total[5m])", "there is no metric hit_total"),
        ('hits_total{code="500"}', "hits_total has no label code"),
        ("sum by (stage) (hits_total)", "none has the label stage"),
        ("took_seconds", "there is no metric took_seconds"),
    ],
)
def test_what_is_not_there_is_named(expression: str, fault: str) -> None:
    assert EXPOSED.faults(expression) == [fault]


@pytest.mark.parametrize("expression", ["sum(§)", "sum(1)"])
def test_what_is_not_understood_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|reads no metric"):
        reading(expression)


def test_what_is_there_has_no_fault() -> None:
    expression = 'histogram_quantile(0.9, sum by (instance, le) (took_seconds_bucket{stage="a"}))'
    assert EXPOSED.faults(expression) == []
