"""The Grafana dashboard: provisioned, every query reads what is exposed, nothing overlaps."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import metrics_in
from tests.support.metrics import ROOT, documented

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


@pytest.mark.parametrize("target", QUERIES)
def test_a_query_reads_what_is_exposed(
    target: dict[str, Any], exposed: dict[str, set[str]]
) -> None:
    read = metrics_in(target["expr"])
    assert read <= exposed.keys()
    assert read or re.search(r"\b(up|ALERTS)\b", target["expr"])


def test_variables_are_of_labels_that_are_there(exposed: dict[str, set[str]]) -> None:
    for variable in BOARD["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found is not None
        expression, label = found.groups()
        for name in metrics_in(expression):
            assert label in exposed[name]
        assert variable["query"]["query"] == variable["definition"]


def test_every_metric_is_on_the_dashboard() -> None:
    shown: set[str] = set()
    for panel in PANELS:
        for target in panel["targets"]:
            shown |= metrics_in(target["expr"])
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
