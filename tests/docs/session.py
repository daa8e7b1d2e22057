"""Runs the examples of a page, one after the other, in a folder of their own.

A `sh` block is run by bash as it stands, but for two things: `forage serve` goes on in the
background (the next one takes its place), and its address is that of a free port (to `forage-sim`
it is said). Variables live from block to block. A block right after it (json, or without a
language) is what it has to print: JSON in its shape, text as it is.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.cli.forage import Serving, environment, serving
from tests.docs.page import blocks

ADDRESS = "http://127.0.0.1:8000"
STEP_S = 100.0


class Session:
    """folder: where the examples are run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self.running: Serving | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self._stop()

    def run(self, page: Path) -> int:
        """Run its blocks; how many were run."""
        found = list(blocks(page))
        count = 0
        for index, block in enumerate(found):
            if not block.run or block.language not in ("sh", "python"):
                continue
            where = f"{page.name}:{block.line}"
            if block.language == "python":
                printed = self._run([sys.executable, "-c", self._here(block.text)], where)
            else:
                printed = self._sh(block.text, where)
            count += 1
            after = found[index + 1] if index + 1 < len(found) else None
            if after and after.run and after.language in ("json", ""):
                expect(printed, after.text, after.language == "json", where)
        return count

    def _sh(self, text: str, where: str) -> str:
        rest = []
        for line in text.splitlines():
            if (command := line.removeprefix(".venv/bin/")).startswith("forage serve"):
                self._serve(command)
            else:
                rest.append(line)
        if not any(rest):
            return ""
        kept = shlex.quote(str(self._folder / ".variables"))
        before = f"set -eo pipefail\n[ -f {kept} ] && . {kept}"
        after = f"declare -p TOKEN SLATE SECOND AHEAD ID >{kept} 2>/dev/null || true"
        script = "\n".join([before, *rest, after])
        return self._run(["bash", "-c", self._here(script)], where)

    def _here(self, text: str) -> str:
        if self.running is None:
            return text
        visitors = f"forage-sim replay --url {self.running.url}"
        return text.replace(ADDRESS, self.running.url).replace("forage-sim replay", visitors)

    def _run(self, command: list[str], where: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        proxies = dict.fromkeys(("NO_PROXY", "no_proxy"), "*")
        url = {"FORAGE_URL": self.running.url} if self.running else {}
        ended = subprocess.run(
            command,
            cwd=self._folder,
            env=environment(PATH=path, **proxies, **url),
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
        assert ended.returncode == 0, f"{where}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def _serve(self, line: str) -> None:
        self._stop()
        _, _, *options = shlex.split(line, comments=True)
        self.running = self._open.enter_context(serving(self._folder, *options))

    def _stop(self) -> None:
        if self.running is not None:
            assert self.running.stop() == 0
            self._open.close()
            self.running = None


def expect(printed: str, told: str, is_json: bool, where: str) -> None:
    if is_json:
        assert shape(json.loads(printed)) == shape(json.loads(told)), f"{where}: {printed}"
    else:
        numbers = re.compile(r"'\d+'")  # an arm that was drawn
        assert numbers.sub("N", printed.strip()) == numbers.sub("N", told.strip()), where


def shape(value: Any) -> Any:
    """Names and types; statuses as they are."""
    if isinstance(value, dict):
        return {
            name: each if name in ("status", "type") else shape(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [shape(each) for each in value]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else type(value).__name__
