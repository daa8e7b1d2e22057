"""One campaign: a service in memory, schemathesis with all its checks, and what came of it."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.forage import serving
from tests.support.process import unmeasured
from tests.support.service import SHOP

HERE = Path(__file__).parent
PINNED = HERE.parent / "http" / "openapi.json"
DECISIONS = 20


@dataclass(frozen=True, slots=True)
class Campaign:
    """cases: requests that were made up and sent. said: by schemathesis, with what to repeat."""

    cases: int
    failures: list[dict[str, Any]]
    operations: int
    untested: int
    errors: int
    said: str
    log: str

    @property
    def clean(self) -> bool:
        return not (self.failures or self.errors or self.untested or self.bugs)

    @property
    def bugs(self) -> list[str]:
        """Lines of the service's log that should not be there."""
        lines = self.log.splitlines()
        return [line for line in lines if '"level": "error"' in line or "Traceback" in line]

    def summary(self) -> str:
        tested = self.operations - self.untested
        lines = [
            f"{self.cases:,} requests to {tested} of {self.operations} operations, "
            f"{len(self.failures)} kinds of failure, {len(self.bugs)} bugs in the log"
        ]
        lines += [f"  {each['title']}: {', '.join(each['operations'])}" for each in self.failures]
        return "\n".join(lines)


def attack(folder: Path, examples: int, phases: str, seed: int) -> Campaign:
    """Attack every operation of the pinned description; folder: for what it leaves.

    examples   made-up requests an operation in each phase, at most
    """
    report = folder / "report.json"
    with serving(folder, "--store", "memory://", "--experiment", str(SHOP)) as running:
        question = {"context": {"persona": "cat"}}
        ids = [running.post("/select", question)["id"] for _ in range(DECISIONS)]
        config = folder / "schemathesis.toml"
        own = (HERE / "schemathesis.toml").read_text(encoding="utf-8")
        config.write_text(f"{own}\n[dictionaries.decisions]\nvalues = {json.dumps(ids)}\n")
        tomllib.loads(config.read_text())
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
        command += [str(PINNED), "--url", running.url, "--max-examples", str(examples)]
        command += ["--phases", phases, "--checks", "all", "--seed", str(seed), "--no-color"]
        command += ["--report", "json", "--report-json-path", str(report)]
        command += ["--generation-database", "none", "--continue-on-failure"]
        command += ["--suppress-health-check", "all"]
        ended = subprocess.run(
            command,
            cwd=folder,
            env=unmeasured(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(report.read_text()) if report.exists() else {}
        if not found.get("operations"):
            raise RuntimeError(f"schemathesis did not run: {ended.stdout}{ended.stderr}")
        assert running.get("/healthz")["status"] == "ok"
        assert running.stop() == 0
        return Campaign(
            found["test_cases"]["generated"],
            found["failures"],
            found["operations"]["total"],
            found["operations"]["total"] - found["operations"]["tested"],
            len(found["errors"]),
            ended.stdout,
            running.said,
        )
