"""The commit of published figures."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
ABBREVIATED: Final = 10  # digits of a commit


@cache
def commit_of(*paths: str) -> str | None:
    """Return the newest commit that changed one of these paths of the repository; None if their
    files differ from it, and outside a repository."""
    if _git("status", "--porcelain", "--", *paths) != "":
        return None
    return _git("log", "-1", "--format=%h", f"--abbrev={ABBREVIATED}", "--", *paths)


def _git(*command: str) -> str | None:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
