"""The whole log of a session with hostile callers: nothing secret in it, every line one object."""

import base64
import json
import os
from pathlib import Path

import httpx
import pytest

from tests.cli.forage import Serving, serving

pytestmark = pytest.mark.process

SECRET = base64.b64encode(os.urandom(32)).decode()
FK = "fk_0123456789abcdef_" + "cd" * 32
UNIT = "person-8371"


def hostile(running: Serving) -> list[str]:
    """Use and misuse the service; the tokens of its decisions."""
    question = {"context": {"persona": "cat_connoisseur"}, "unit": UNIT}
    tokens = [running.post("/select", question)["decision_id"] for _ in range(3)]
    headers = {
        "Authorization": f"Bearer {FK}",
        "X-API-Key": FK,
        "X-Request-ID": FK,
        "Cookie": f"session={FK}",
    }
    client = running.client
    for token in tokens:
        body = {"decision_id": token, "reward": 1.0}
        client.post("/reward", json=body, headers=headers)
        client.post("/reward", json=body | {"reward": 0.0}, headers=headers)  # 409
        client.post("/reward", json=body | {FK: token})  # 422
        client.get(f"/decisions/{token}", headers=headers)
        client.get(f"/experiments/{token}", headers=headers)
        client.get("/arms", params={"key": FK, "token": token}, headers=headers)
        client.put(f"/arms/{FK}", json={"features": {FK: token}}, headers=headers)
        client.post("/select", content=f'{{"unit": "{token}'.encode(), headers=headers)
        client.delete(f"/units/{UNIT}", headers=headers)
        client.post("/reward/batch", json={"requests": [body, {"decision_id": FK}]})
    client.get("/metrics", headers=headers)
    for raw in (b"\xff\xfe", b'"\\ud800"', b"[" * 5_000, b"\n{}\x1b[2J"):
        client.post("/select", content=raw, headers={"Content-Type": "application/json", **headers})
    with httpx.Client(base_url=running.url, trust_env=False) as odd:
        odd.request("GET", f"/{FK}%0d%0aforged", headers=headers)
        odd.request("PROPFIND", f"/{FK}", headers=headers)
    return tokens


@pytest.mark.parametrize(
    ("form", "level"),
    [
        ("json", "debug"),
        pytest.param("json", "info", marks=pytest.mark.slow),
        ("console", "info"),
        pytest.param("console", "debug", marks=pytest.mark.slow),
    ],
)
def test_the_log_of_a_hostile_session_holds_no_secret(
    form: str, level: str, tmp_path: Path
) -> None:
    options = ("--log-format", form, "--log-level", level)
    with serving(tmp_path, *options, FORAGE_TOKEN_KEYS=SECRET, FORAGE_KEY=FK) as running:
        tokens = hostile(running)
        assert running.stop() == 0
        said = running.said
    assert "serving zooplus" in said
    assert len(tokens) == 3
    secrets = [SECRET, SECRET.rstrip("="), FK, "cd" * 32, UNIT, *tokens]
    assert [secret for secret in secrets if secret in said] == []
    assert "Traceback" not in said
    assert "\x1b" not in said
    lines = said.splitlines()
    assert (sum("request_id" in line for line in lines) > 10) == (level == "debug")
    if form == "json":
        assert all({"timestamp", "level", "event"} <= json.loads(line).keys() for line in lines)
