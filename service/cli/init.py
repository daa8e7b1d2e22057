"""forage init: write an experiment file to begin with, every setting explained."""

import json
import re
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated

from typer import Argument, Option

from service.errors import ConfigurationError

TEMPLATE = Path(__file__).parents[1] / "definition" / "examples" / "experiment.toml"


def rendered(name: str, file: str) -> str:
    """Return the file for an experiment: the template, the names of all kinds of policies, and the
    settings of those that the template does not mention."""
    from service.bandits.kinds import KINDS

    text = TEMPLATE.read_text(encoding="utf-8")
    kinds = fill(" ".join(KINDS), 100, initial_indent="# kinds: ", subsequent_indent="#        ")
    for kind, model in KINDS.items():
        if re.search(rf"\b{kind}\b", text):
            continue
        text += f'#\n# [policies.{kind}]\n# kind = "{kind}"\n'
        for setting, field in model.model_fields.items():
            if setting != "kind" and not re.search(rf"\b{setting} = ", text):
                text += f"# {setting} = {json.dumps(field.default)}  # {field.description}\n"
    return text.replace("@NAME@", name).replace("@FILE@", file).replace("# kinds: @KINDS@", kinds)


def init(
    path: Annotated[
        Path, Argument(metavar="FILE", help="The file to write; -: standard output.")
    ] = Path("experiment.toml"),
    name: Annotated[
        str | None, Option(metavar="NAME", help="Name of the experiment (that of the file).")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
) -> int:
    """Write an experiment file to begin with, every setting explained.

    Write a small shop that can be served as it is, with an explanation beside every setting.

    Exit status: 0 where the file is written, 1 where it exists or cannot be written.

        forage init shop.toml
        forage init - | less
    """
    from service.features.declaration import NAME

    printed = str(path) == "-"
    stem = "experiment" if printed else path.stem
    name = name or re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.") or "experiment"
    if not re.fullmatch(NAME, name):
        raise ConfigurationError("--name: letters, digits, '_', '.' and '-', at most 64")
    shown = "experiment.toml" if printed or not str(path).isprintable() else str(path)
    content = rendered(name, shown)
    if printed:
        print(content, end="")
        return 0
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError as fault:
        raise ConfigurationError(f"{path} exists: --force overwrites it") from fault
    except OSError as fault:
        raise ConfigurationError(f"{path}: {fault.strerror}") from fault
    print(f"{path} defines the experiment {name!r}. Edit it, then:", file=sys.stderr)
    print(f"  forage check {path}\n  forage serve --experiment {path}", file=sys.stderr)
    return 0
