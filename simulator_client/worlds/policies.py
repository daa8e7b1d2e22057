"""The policies that are known by name, and the settings that a name stands for.

A name is a kind and, after it, what differs from the kind's defaults: `neural_ucb_full`,
`lints_disjoint_window`. Whatever a name does not say is left to the service.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator_client.errors import UsageError

Settings = dict[str, Any]

DISJOINT: Final[dict[str, Settings]] = {"disjoint": {"disjoint": True}}
FORMS: Final[dict[str, Settings]] = {
    form: {"form": form} for form in ("last_layer", "diagonal", "full")
}
RULES: Final[dict[str, Settings]] = {rule: {"rule": rule} for rule in ("thompson", "ucb")}
REGRESSORS: Final[dict[str, Settings]] = {
    regressor: {"regressor": regressor} for regressor in ("linear", "neural", "popularity")
}
# kind -> suffix -> the settings it stands for
KINDS: Final[dict[str, dict[str, Settings]]] = {
    "auto": {},
    "linucb": DISJOINT,
    # Thompson draws narrowed to a tenth: for rewards whose noise is far above what is to learn.
    "lints": DISJOINT | {"narrow": {"scale": 0.1}},
    "neural_linear_ts": DISJOINT,
    "neural_linucb": DISJOINT,
    "neural_ucb": FORMS,
    "neural_ts": FORMS,
    "neural_glm_ts": {},
    "bootstrap_ensemble": RULES,
    "mc_dropout": RULES,
    "greedy": DISJOINT | REGRESSORS,
    "epsilon_greedy": DISJOINT | REGRESSORS,
    "squarecb": DISJOINT | REGRESSORS,
    "popularity": {},
    "static": {},
    "random": {},
}
# How a policy forgets; a suffix of every kind that learns while it serves.
MODIFIERS: Final[dict[str, Settings]] = {
    "change": {"change": True},
    "forgetting": {"gamma": 0.9995},
    "window": {"window": 2000},
}
FIXED: Final = frozenset({"auto", "static", "random"})
LINEAR: Final = frozenset({"linucb", "lints", "greedy", "epsilon_greedy", "squarecb"})


def named(name: str) -> Settings | None:
    """Return the settings that a name stands for; None where it stands for none."""
    for kind in sorted(KINDS, key=len, reverse=True):
        if name == kind or name.startswith(kind + "_"):
            said = _suffixes(name.removeprefix(kind), _known_suffixes(kind))
            return None if said is None else {"kind": kind} | said
    return None


def known() -> str:
    """Every name, in short."""
    kinds = (
        kind + (f"[_{'|_'.join(suffixes)}]" if suffixes else "") for kind, suffixes in KINDS.items()
    )
    return f"{', '.join(kinds)}; those that learn also with _{', _'.join(MODIFIERS)} at the end"


def chosen(
    names: Sequence[str],
    own: Mapping[str, Mapping[str, Any]] | None,
    fit: Callable[[Settings], Settings],
) -> dict[str, Settings]:
    """`policies` of a definition. `fit` gives what a world adds where the settings do not say it.

    Raises UsageError for an unknown name.
    """
    policies = {}
    for name in names:
        settings = dict(own[name]) if own and name in own else named(name)
        if settings is None:
            more = f"{', '.join(own)}; " if own else ""
            raise UsageError(f"unknown policy {name!r}; known: {more}{known()}")
        policies[name] = fit(settings) | settings
    return policies


def read_policies(path: Path) -> dict[str, Settings]:
    """Policies from a file, JSON if it is named so, else TOML: name -> settings with a `kind`, or
    an experiment's file, of which the `policies` count alone.

    Raises UsageError that says what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            found = json.loads(text, object_pairs_hook=_each_once)
        else:
            found = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of bytes that are no text
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is not {form}: {error}") from error
    inner = found.get("policies") if isinstance(found, dict) else None
    if isinstance(inner, dict) and not isinstance(inner.get("kind"), str):
        found = inner
    if not isinstance(found, dict) or not found:
        raise UsageError(f"{path} holds no policies: name -> settings")
    for name, settings in found.items():
        if not isinstance(settings, dict) or not isinstance(settings.get("kind"), str):
            raise UsageError(f"{path}: policy {name!r} has no kind")
    return found


def _each_once(members: list[tuple[str, Any]]) -> Settings:
    """Make a JSON object. Raises ValueError where a member is given twice, as TOML does."""
    found: Settings = {}
    for name, value in members:
        if name in found:
            raise ValueError(f"{name!r} is given twice")
        found[name] = value
    return found


def sees_features(settings: Mapping[str, Any]) -> bool:
    """Say whether the policy looks at features at all."""
    blind = ("popularity", "random")
    return settings.get("kind") not in blind and settings.get("regressor") not in blind


def is_linear(settings: Mapping[str, Any]) -> bool:
    """Say whether the policy has no net, and so finds no cross of features by itself."""
    return settings.get("kind") in LINEAR and settings.get("regressor", "linear") == "linear"


def _known_suffixes(kind: str) -> dict[str, Settings]:
    return KINDS[kind] | ({} if kind in FIXED else MODIFIERS)


def _suffixes(text: str, table: Mapping[str, Settings]) -> Settings | None:
    """Return what `_a_b` adds, modifiers last; None where a part is unknown or said twice."""
    said: Settings = {}
    modified = False
    while text:
        suffix = next((s for s in table if (text + "_").startswith(f"_{s}_")), None)
        if suffix is None or said.keys() & table[suffix].keys():
            return None
        if modified and suffix not in MODIFIERS:
            return None
        modified = suffix in MODIFIERS
        said |= table[suffix]
        text = text.removeprefix(f"_{suffix}")
    return said
