"""Alert rules: each reads what is exposed, leads to a runbook, and fires when it has to."""

import re
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import metrics_in
from tests.support.metrics import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
PARTS = ["**Means.**", "**Users feel.**", "**Check.**", "**Do.**"]

rules = pytest.mark.parametrize("rule", RULES, ids=NAMES)


def seconds(duration: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"(\d+)([smh])", duration))


@rules
def test_an_alert_reads_what_is_exposed(rule: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    read = metrics_in(rule["expr"])
    assert read <= exposed.keys()
    assert read or 'up{job="forage"}' in rule["expr"]
    named = set[str]().union(*(exposed[name] for name in read))
    for text in rule["annotations"].values():
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in rule["expr"] or label in {"instance", "job"} | named


@rules
def test_an_alert_says_how_bad_it_is_what_it_is_and_by_when(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"].endswith(".")
    assert seconds(rule["annotations"]["within"]) > seconds(rule.get("for", "0s"))


@rules
def test_an_alert_leads_to_a_runbook_of_four_parts(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page).is_file()
    sections = {_anchor(title): body for title, body in _sections()}
    assert re.findall(r"^\*\*[\w ]+\.\*\*", sections[anchor], re.MULTILINE) == PARTS


def _sections() -> list[tuple[str, str]]:
    parts = re.split(r"^## (.*)$", RUNBOOKS, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def test_the_page_of_runbooks_lists_the_alerts_as_they_are() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#([\w-]+)\) \| (\w+) \| (\w+) \|", RUNBOOKS, re.MULTILINE)
    assert rows == [
        (
            rule["alert"],
            rule["annotations"]["runbook_url"].partition("#")[2],
            rule["labels"]["severity"],
            rule["annotations"]["within"],
        )
        for rule in RULES
    ]
    assert len(_sections()) == len(RULES)


def test_prometheus_is_started_with_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    assert config["rule_files"] == ["rules.yml"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    mounted = compose["services"]["prometheus"]["volumes"]
    assert "./deploy/prometheus/rules.yml:/etc/prometheus/rules.yml:ro" in mounted
