"""The probes and times of docs/operations.md for Kubernetes fit those of the service."""

import yaml

from service.http.request_head import PROBES
from service.server.serving import REQUEST_SECONDS
from service.settings import Settings
from tests.docs.page import DOCS, blocks

SNAPSHOT_SECONDS = 10.0

[TEXT] = [each.text for each in blocks(DOCS / "operations.md") if each.language == "yaml"]
POD = yaml.safe_load(TEXT)["spec"]
[CONTAINER] = POD["containers"]


def test_the_grace_period_covers_all_that_a_stop_does() -> None:
    given = {each["name"]: each["value"] for each in CONTAINER["env"]}
    settings = Settings(drain_seconds=given["FORAGE_DRAIN_SECONDS"])
    asleep = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    stop = asleep + settings.drain_seconds + REQUEST_SECONDS + SNAPSHOT_SECONDS
    assert POD["terminationGracePeriodSeconds"] >= stop


def test_draining_lasts_until_the_probe_has_failed() -> None:
    probe = CONTAINER["readinessProbe"]
    given = {each["name"]: float(each["value"]) for each in CONTAINER["env"]}
    unready = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert unready <= given["FORAGE_DRAIN_SECONDS"]


def test_the_probes_ask_what_is_answered_without_a_key() -> None:
    found = {name: CONTAINER[name]["httpGet"] for name in CONTAINER if name.endswith("Probe")}
    assert {each["path"] for each in found.values()} == PROBES
    assert {each["port"] for each in found.values()} == {Settings().port}
    assert found["livenessProbe"]["path"] == found["startupProbe"]["path"] == "/healthz"
