"""The Grafana dashboard: provisioned, every query reads what is exposed, nothing overlaps."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_rules import needs_promtool, promtool
from tests.support.metrics import ROOT, documented
from tests.support.promql import Exposed, reading

FOLDER = ROOT / "deploy" / "grafana"
BOARD: dict[str, Any] = json.loads(
    (FOLDER / "dashboards" / "forage.json").read_text(encoding="utf-8")
)
PANELS: list[dict[str, Any]] = [one for one in BOARD["panels"] if one["type"] != "row"]
QUERIES = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
ALERTS = {"alertname", "alertstate"}
"""Labels of `ALERTS`, which Prometheus makes of the rules."""


@pytest.fixture
def known(exposed: Exposed) -> Exposed:
    return Exposed({**exposed.labels, "ALERTS": ALERTS})


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_reads_what_is_exposed(target: dict[str, Any], known: Exposed) -> None:
    assert known.faults(target["expr"]) == []


@pytest.mark.parametrize("target", QUERIES)
def test_a_legend_names_labels_that_the_query_keeps(target: dict[str, Any]) -> None:
    named = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    kept = reading(target["expr"]).grouped
    assert named <= kept or not kept


def test_variables_are_of_labels_that_are_there(known: Exposed) -> None:
    for variable in BOARD["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found is not None
        expression, label = found.groups()
        assert known.faults(f"count by ({label}) ({expression})") == []
        assert variable["query"]["query"] == variable["definition"]


def test_every_metric_is_on_the_dashboard() -> None:
    shown: set[str] = set()
    for panel in PANELS:
        for target in panel["targets"]:
            shown |= reading(target["expr"]).metrics
    plain = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    assert documented().keys() - plain == set()


def test_panels_lie_beside_each_other_within_the_width() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert grid["x"] + grid["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_it_has_a_row_for_each_question() -> None:
    rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Is it well?",
        "Traffic and latency",
        "Learning",
        "Exploration",
        "Head health",
        "Drift",
        "Log and store",
        "Trainer",
    ]


def test_grafana_is_started_with_it() -> None:
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/forage.yml").read_text())
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    volumes = compose["services"]["grafana"]["volumes"]
    path = provider["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{path}:ro" in volumes
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in volumes
    uid = source["datasources"][0]["uid"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {uid}


@needs_promtool
def test_promtool_takes_every_query(tmp_path: Path) -> None:
    rules = []
    for index, query in enumerate(QUERIES):
        target: Any = query.values[0]
        expression = target["expr"].replace("$__rate_interval", "1m").replace("$experiment", ".*")
        rules.append({"record": f"query:{index}", "expr": expression.replace("$policy", ".*")})
    groups = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "queries.yml").write_text(yaml.safe_dump(groups), encoding="utf-8")
    assert shutil.which("promtool")
    done = promtool("check", "rules", "queries.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
