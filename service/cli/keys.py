"""forage keys: make, list and revoke the API keys of a service."""

import re
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ValidationError
from typer import Argument, BadParameter, Option

from service.cli.options import Names, moment, names
from service.cli.running import Command
from service.definition.faults import faults_of
from service.errors import ConfigurationError
from service.security.keys import Key, changing, digest_of, mint, now, read_keys
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


def _most(option: str, text: str) -> object:
    return Option(option, metavar="N", help=f"at most: {text}")


@partial(Command, summary="make a key, and print it this once", settings=("keys",))
def add(
    settings: Settings,
    name: Annotated[str, Option(metavar="NAME", help="its owner: shop-web, prometheus")],
    scopes: Annotated[
        Names,
        Option(parser=names, metavar="A,B", help="its scopes: select, reward, admin, metrics"),
    ],
    experiments: Annotated[
        Names | None, Option(parser=names, metavar="A,B", help="its experiments (all)")
    ] = None,
    origins: Annotated[
        Names | None,
        Option(
            parser=names,
            metavar="A,B",
            help="for browsers, in pages of these origins: https://shop.example",
        ),
    ] = None,
    rate: Annotated[
        str | None, Option(metavar="RATE", help='of requests: "100/second" (no limit)')
    ] = None,
    arms: Annotated[
        Literal["catalogue", "any"] | None, Option(help="arms a request may name (catalogue)")
    ] = None,
    policies: Annotated[
        Literal["assigned", "named"] | None,
        Option(help="whether a request may name a policy (assigned)"),
    ] = None,
    top_k: Annotated[int | None, _most("--top-k", "arms to rank (20)")] = None,
    most_arms: Annotated[int | None, _most("--most-arms", "arms a request names (100)")] = None,
    batch: Annotated[int | None, _most("--max-batch", "requests of a batch (20)")] = None,
    text: Annotated[
        int | None,
        _most("--max-text", "characters of an id, a unit or a string of the context (128)"),
    ] = None,
    body_bytes: Annotated[int | None, _most("--max-body", "bytes of a request (16384)")] = None,
    rate_per_address: Annotated[
        str | None, Option(metavar="RATE", help='of each address, or "none" (3000/minute)')
    ] = None,
    rate_per_unit: Annotated[
        str | None, Option(metavar="RATE", help='of each unit, or "none" (300/minute)')
    ] = None,
    expires: Annotated[
        datetime | None,
        Option(parser=_time, metavar="WHEN", help="90d, 12h, or a day: 2030-01-31 (never)"),
    ] = None,
) -> int:
    path = _file(settings)
    profile = {
        "arms": arms,
        "policies": policies,
        "top_k": top_k,
        "most_arms": most_arms,
        "batch": batch,
        "text": text,
        "body_bytes": body_bytes,
        "rate_per_address": rate_per_address,
        "rate_per_unit": rate_per_unit,
    }
    given: dict[str, object] = {
        "name": name,
        "scopes": tuple(scopes),
        "experiments": None if experiments is None else tuple(experiments),
        "origins": tuple(origins or ()),
        "rate": rate,
        "expires": expires,
    }
    if profile := {field: value for field, value in profile.items() if value is not None}:
        given["profile"] = profile
    key_id, secret = mint()
    digest = digest_of(secret.encode()).hex()
    try:
        key = Key.model_validate({**given, "id": key_id, "digest": digest, "created": now()})
    except ValidationError as error:
        faults = [
            f"--{_option(fault.path)} {fault.message}" if fault.path else fault.message
            for fault in faults_of(error.errors(), given)
        ]
        raise ConfigurationError("\n".join(faults)) from error
    if key.expires is not None and key.expires <= now():
        raise ConfigurationError("--expires has passed already")
    with changing(path) as keys:
        keys.append(key)
    print(secret)
    print(
        f"Kept in {path} as a hash alone: this is the only time that the key is shown.\n"
        f"Revoke it with: forage keys revoke {key_id} --keys {path}",
        file=sys.stderr,
    )
    return 0


def _option(path: str) -> str:
    """The option of a field of the key."""
    field = path.removeprefix("profile.")
    by_field = {"batch": "max_batch", "text": "max_text", "body_bytes": "max_body"}
    return by_field.get(field, field).replace("_", "-")


@partial(Command, summary="the keys, without their secrets", settings=("keys",))
def show(settings: Settings) -> int:
    from service.serving.audit_report import aligned

    at = now()
    columns = "id name scopes experiments origins rate may created expires is"
    rows = [columns.split()]
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


@partial(Command, summary="revoke a key; services refuse it within a second", settings=("keys",))
def revoke(
    settings: Settings,
    wanted: Annotated[str, Argument(metavar="ID", help="its id, or its name if unique")],
) -> int:
    path = _file(settings)
    read_keys(path)  # one that is missing is not made
    with changing(path) as keys:
        index = _index(keys, wanted)
        keys[index] = keys[index].model_copy(update={"revoked": keys[index].revoked or now()})
        key = keys[index]
    print(f"{key.id} {key.name}: revoked; running services refuse it within a second")
    return 0


def _index(keys: list[Key], wanted: str) -> int:
    by_id = [index for index, key in enumerate(keys) if key.id == wanted]
    named = [i for i, key in enumerate(keys) if key.name == wanted and key.revoked is None]
    if not by_id and len(named) > 1:
        ids = ", ".join(keys[index].id for index in named)
        raise ConfigurationError(f"several keys have the name {wanted!r}: {ids}")
    if not (found := by_id or named):
        raise ConfigurationError(f"there is no key {wanted!r} to revoke")
    return found[0]


@partial(
    Command,
    summary="make, list and revoke API keys",
    epilog="Exit status: 0, or 1 where the file cannot be read or written, or no such key can be.",
    example="forage keys add --keys keys.json --name ops --scopes admin\n"
    "forage keys add --keys keys.json --name shop-web --scopes select,reward \\\n"
    "    --experiments zooplus --origins https://shop.example --rate 200/second\n"
    "forage keys list --keys keys.json\n"
    "forage keys revoke --keys keys.json shop-web",
    settings=("keys", "store"),
    actions={"add": add, "list": show, "revoke": revoke},
)
def command(settings: Settings) -> int:
    """Keep the file of API keys that `forage serve --keys FILE` requires. Services read it again
    within a second of a change. It holds the rights of each key and a hash of it; the key itself is
    printed when it is made, and never again. docs/keys.md lists the keys that a page, a backend and
    Prometheus need."""
    return 0
