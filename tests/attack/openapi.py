"""Schemathesis with all its checks against a service in memory, by the pinned OpenAPI."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.attack.hostile.verdict import bugs
from tests.cli.forage import serving
from tests.support.process import unmeasured
from tests.support.service import SHOP

HERE: Final = Path(__file__).parent
PINNED: Final = HERE.parent / "http" / "openapi.json"
DECISIONS: Final = 20
EXAMPLES: Final = 60
"""Made-up requests an operation in each phase, at most."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """cases: requests that were made up and sent."""

    cases: int
    violations: list[str]


def attack(folder: Path, seed: int) -> Campaign:
    """Attack every operation of the pinned description; folder: for what it leaves."""
    report = folder / "report.json"
    with serving(folder, "--store", "memory://", "--experiment", str(SHOP)) as running:
        question = {"context": {"persona": "cat"}}
        ids = [running.post("/select", question)["id"] for _ in range(DECISIONS)]
        config = folder / "schemathesis.toml"
        own = (HERE / "schemathesis.toml").read_text(encoding="utf-8")
        config.write_text(f"{own}\n[dictionaries.decisions]\nvalues = {json.dumps(ids)}\n")
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        command += [str(PINNED), "--url", running.url, "--max-examples", str(EXAMPLES)]
        command += ["--phases", "examples,coverage,fuzzing,stateful"]
        command += ["--checks", "all", "--seed", str(seed), "--no-color"]
        command += ["--report", "json", "--report-json-path", str(report)]
        command += ["--generation-database", "none", "--continue-on-failure"]
        command += ["--suppress-health-check", "all"]
        environment = unmeasured(os.environ)
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        (folder / "said.txt").write_text(ended.stdout)
        found = json.loads(report.read_text()) if report.exists() else {}
        if not found.get("operations"):
            raise RuntimeError(f"schemathesis did not run: {ended.stdout}{ended.stderr}")
        assert running.get("/healthz")["status"] == "ok"
        assert running.stop() == 0
        violations = [f"{each['title']}: {each['operations']}" for each in found["failures"]]
        violations += [f"schemathesis failed: {error}" for error in found["errors"]]
        violations += [f"the service logged: {line}" for line in bugs(running.said)]
        if untested := found["operations"]["total"] - found["operations"]["tested"]:
            violations.append(f"{untested} operations were not tested")
        return Campaign(
            found["test_cases"]["generated"], [f"openapi: {line}" for line in violations]
        )
