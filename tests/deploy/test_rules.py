"""Alert rules: each reads what is exposed, leads to a runbook, and fires when it has to."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.metrics import ROOT
from tests.support.promql import Exposed

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
def test_an_alert_reads_what_is_exposed(rule: dict[str, Any], exposed: Exposed) -> None:
    assert exposed.faults(rule["expr"]) == []
    for text in rule["annotations"].values():
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in rule["expr"] or label in {"instance", "job"} | _labels(rule, exposed)


def _labels(rule: dict[str, Any], exposed: Exposed) -> set[str]:
    named = [labels for name, labels in exposed.labels.items() if name in rule["expr"]]
    return set().union(*named)


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


# -- by promtool -------------------------------------------------------------------------------

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on the PATH"
)


def promtool(*arguments: str, folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@needs_promtool
def test_promtool_takes_the_configuration_and_the_rules() -> None:
    for arguments in (["check", "config", "prometheus.yml"], ["check", "rules", "rules.yml"]):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_when_it_has_to_and_not_before() -> None:
    done = promtool("test", "rules", "rules_test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("broken", ["vector(1) > 2", "vector(1)"], ids=["never", "always"])
def test_the_tests_of_the_rules_see_alerts_that_are_broken(broken: str, tmp_path: Path) -> None:
    found = yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"], rule["for"] = broken, "0s"
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(found), encoding="utf-8")
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    done = promtool("test", "rules", "rules_test.yml", folder=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert [name for name in NAMES if name not in said] == []
