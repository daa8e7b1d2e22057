"""forage keys: make, list and revoke the API keys of a service."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Argument, BadParameter, Option

from service.cli.running import Command
from service.cli.values import Names, moment, names
from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.security.keys import Key
    from service.settings import Settings

UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def _time(text: str) -> datetime:
    """Of a span from now, or of a day in UTC."""
    if span := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return datetime.now(UTC).replace(microsecond=0) + timedelta(
            **{UNITS[span[2]]: int(span[1])}
        )
    try:
        return moment(text)
    except BadParameter as fault:
        raise BadParameter(f"{text!r} is neither 90d nor 2030-01-31") from fault


def _file(settings: "Settings") -> Path:
    if settings.keys is None:
        raise ConfigurationError("say which file: --keys keys.json, or FORAGE_KEYS=keys.json")
    return settings.keys


def add(
    settings: "Settings",
    name: str = Option(..., metavar="NAME", help="who has it: shop-web, prometheus"),
    scopes: Names = Option(
        ..., parser=names, metavar="A,B", help="what it is good for: select, reward, admin, metrics"
    ),
    experiments: Names | None = Option(
        None, parser=names, metavar="A,B", help="it is good for these alone (all)"
    ),
    origins: Names | None = Option(
        None,
        parser=names,
        metavar="A,B",
        help="it is for browsers, in pages of these: https://shop.example",
    ),
    rate: str | None = Option(None, metavar="RATE", help='of requests: "100/second" (no limit)'),
    arms: Literal["catalogue", "any"] | None = Option(
        None, help="arms that may be named (catalogue)"
    ),
    policies: Literal["assigned", "named"] | None = Option(
        None, help="whether one may be named (assigned)"
    ),
    top_k: int | None = Option(None, metavar="N", help="at most: arms that are ranked (20)"),
    most_arms: int | None = Option(None, metavar="N", help="at most: arms that are named (100)"),
    max_batch: int | None = Option(None, metavar="N", help="at most: requests of a batch (20)"),
    max_text: int | None = Option(
        None,
        metavar="N",
        help="at most: characters of an id, a unit or a string of the context (128)",
    ),
    max_body: int | None = Option(None, metavar="N", help="at most: bytes of a request (16384)"),
    rate_per_address: str | None = Option(
        None, metavar="RATE", help='of each address, or "none" (3000/minute)'
    ),
    rate_per_unit: str | None = Option(
        None, metavar="RATE", help='of each unit, or "none" (300/minute)'
    ),
    expires: datetime | None = Option(
        None, parser=_time, metavar="WHEN", help="90d, 12h, or a day: 2030-01-31 (never)"
    ),
) -> int:
    """Make a key and print it."""
    from pydantic import ValidationError

    from service.definition.faults import faults_of
    from service.security.keys import Key, changing, digest_of, mint, now

    path = _file(settings)
    said = {
        "arms": arms,
        "policies": policies,
        "top_k": top_k,
        "most_arms": most_arms,
        "batch": max_batch,
        "text": max_text,
        "body_bytes": max_body,
        "rate_per_address": rate_per_address,
        "rate_per_unit": rate_per_unit,
    }
    chosen: dict[str, Any] = {
        "name": name,
        "scopes": tuple(scopes),
        "experiments": None if experiments is None else tuple(experiments),
        "origins": tuple(origins or ()),
        "rate": rate,
        "expires": expires,
    }
    if profile := {field: value for field, value in said.items() if value is not None}:
        chosen["profile"] = profile
    key_id, text = mint()
    digest = digest_of(text.encode()).hex()
    try:
        key = Key(id=key_id, digest=digest, created=now(), **chosen)
    except ValidationError as error:
        faults = faults_of(error.errors(), chosen)
        told = [
            f"--{_option(each.path)} {each.message}" if each.path else each.message
            for each in faults
        ]
        raise ConfigurationError("\n".join(told)) from error
    if key.expires is not None and key.expires <= now():
        raise ConfigurationError("--expires has passed already")
    with changing(path) as keys:
        keys.append(key)
    print(text)
    print(
        f"Kept in {path} as a hash alone: this is the only time that the key is shown.\n"
        f"Revoke it with: forage keys revoke {key_id} --keys {path}",
        file=sys.stderr,
    )
    return 0


def _option(path: str) -> str:
    """That said what lies at a path of the key."""
    field = path.removeprefix("profile.")
    by_field = {"batch": "max_batch", "text": "max_text", "body_bytes": "max_body"}
    return by_field.get(field, field).replace("_", "-")


def show(settings: "Settings") -> int:
    """Print the keys of the file."""
    from service.security.keys import now, read_keys
    from service.serving.audit_report import aligned

    at = now()
    rows = [
        [
            "id",
            "name",
            "scopes",
            "experiments",
            "origins",
            "rate",
            "may",
            "created",
            "expires",
            "is",
        ]
    ]
    rows += [
        [
            key.id,
            key.name,
            ",".join(key.scopes),
            ",".join(key.experiments or ["all"]),
            ",".join(key.origins) or "-",
            key.rate or "-",
            key.limits.described,
            f"{key.created:%Y-%m-%d}",
            f"{key.expires:%Y-%m-%d}" if key.expires else "never",
            key.state(at),
        ]
        for key in read_keys(_file(settings))
    ]
    print("\n".join(aligned(rows)))
    return 0


def revoke(
    settings: "Settings",
    wanted: str = Argument(..., metavar="ID", help="its id, or its name where one alone has it"),
) -> int:
    """Revoke a key."""
    from service.security.keys import changing, now, read_keys

    path = _file(settings)
    read_keys(path)  # one that is missing is not made
    with changing(path) as keys:
        index = _found(keys, wanted)
        keys[index] = keys[index].model_copy(update={"revoked": keys[index].revoked or now()})
        key = keys[index]
    print(f"{key.id} {key.name}: revoked; running services take it no more within a second")
    return 0


def _found(keys: "list[Key]", wanted: str) -> int:
    by_id = [index for index, key in enumerate(keys) if key.id == wanted]
    named = [i for i, key in enumerate(keys) if key.name == wanted and key.revoked is None]
    if not by_id and len(named) > 1:
        ids = ", ".join(keys[index].id for index in named)
        raise ConfigurationError(f"several keys have the name {wanted!r}: {ids}")
    if not (found := by_id or named):
        raise ConfigurationError(f"there is no key {wanted!r} to revoke")
    return found[0]


ACTIONS = {
    "add": Command("make a key, and print it this once", add, settings=("keys",)),
    "list": Command("what there is, without the keys themselves", show, settings=("keys",)),
    "revoke": Command(
        "a key that services take no more, within a second", revoke, settings=("keys",)
    ),
}

COMMAND = Command(
    "make, list and revoke API keys",
    None,
    description="Keep the file of API keys that `forage serve --keys FILE` asks for. Services read "
    "it again within a second of a change. It holds what each key is good for and a hash of it; "
    "the key itself is printed when it is made, and never again. docs/keys.md tells which key a "
    "page, a backend and Prometheus need.",
    epilog="Exit status: 0, or 1 where the file cannot be read or written, or no such key can be.",
    example="forage keys add --keys keys.json --name ops --scopes admin\n"
    "forage keys add --keys keys.json --name shop-web --scopes select,reward \\\n"
    "    --experiments zooplus --origins https://shop.example --rate 200/second\n"
    "forage keys list --keys keys.json\n"
    "forage keys revoke --keys keys.json shop-web",
    group="Operate",
    settings=("keys", "store"),
    actions=ACTIONS,
)
