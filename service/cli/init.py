"""forage init: write an experiment file to begin with, every setting explained."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from service.cli.running import Command
from service.errors import ConfigurationError
from service.settings import Settings

TEMPLATE = Path(__file__).parents[1] / "definition" / "examples" / "experiment.toml"


@partial(
    Command,
    summary="write an experiment file, every setting explained",
    epilog="Exit status: 0 when the file is written, 1 when it was there or cannot be.",
    example="forage init shop.toml\nforage init - | less",
    settings=(),
)
def command(
    settings: Settings,
    path: Annotated[
        Path, Argument(metavar="FILE", help="the file to write; - writes to standard output")
    ] = Path("experiment.toml"),
    name: Annotated[
        str | None, Option(metavar="NAME", help="of the experiment (that of the file)")
    ] = None,
    force: Annotated[bool, Option("--force", help="overwrite a file that is there")] = False,
) -> int:
    """Write an experiment file to begin with: a small shop that can be served as it stands, with
    every setting explained beside it."""
    from service.definition.experiment import NAME

    printed = str(path) == "-"
    stem = "experiment" if printed else path.stem
    name = name or re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.") or "experiment"
    if not re.fullmatch(NAME, name):
        raise ConfigurationError("--name: letters, digits, '_', '.' and '-', at most 64")
    shown = "experiment.toml" if printed or not str(path).isprintable() else str(path)
    content = TEMPLATE.read_text(encoding="utf-8").replace("@NAME@", name).replace("@FILE@", shown)
    if printed:
        print(content, end="")
        return 0
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError as fault:
        raise ConfigurationError(f"{path} is there already: --force overwrites it") from fault
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from fault
    print(f"{path} defines the experiment {name!r}. Edit it, then:", file=sys.stderr)
    print(f"  forage check {path}\n  forage serve --experiment {path}", file=sys.stderr)
    return 0
