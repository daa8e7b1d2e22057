"""forage keys: make, list and revoke the API keys of a service."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ValidationError
from typer import Argument, BadParameter, Option

from service.cli.options import KeysFile, Names, moment, names
from service.cli.running import read_settings
from service.definition.faults import faults_of
from service.errors import ConfigurationError
from service.naming import quoted, suggestion
from service.security.keys import ApiKey, changing, digest_of, mint, now, read_keys

DURATION_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def _time(text: str) -> datetime:
    """Read a span from now, or a day in UTC. Raises BadParameter."""
    if span := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return datetime.now(UTC).replace(microsecond=0) + timedelta(
            **{DURATION_UNITS[span[2]]: int(span[1])}
        )
    try:
        return moment(text)
    except BadParameter as fault:
        raise BadParameter(f"{text!r} is neither 90d nor 2030-01-31") from fault


def _file(option: Path | None) -> Path:
    """Find the file of keys. Raises ConfigurationError."""
    path = read_settings(keys=option).keys
    if path is None:
        raise ConfigurationError("say which file: --keys keys.json, or FORAGE_KEYS=keys.json")
    return path


def add(
    name: Annotated[str, Option(metavar="NAME", help="Its owner: shop-web, prometheus.")],
    scopes: Annotated[
        Names,
        Option(parser=names, metavar="A,B", help="Scopes: select, reward, admin, metrics."),
    ],
    experiments: Annotated[
        Names | None, Option(parser=names, metavar="A,B", help="Its experiments (all).")
    ] = None,
    origins: Annotated[
        Names | None,
        Option(
            parser=names,
            metavar="A,B",
            help="For browsers, in pages of these origins: https://shop.example.",
        ),
    ] = None,
    rate: Annotated[
        str | None, Option(metavar="RATE", help='Rate of requests: "100/second" (no limit).')
    ] = None,
    arms: Annotated[
        Literal["catalogue", "any"] | None, Option(help="Arms that a request may name (catalogue).")
    ] = None,
    policies: Annotated[
        Literal["assigned", "named"] | None,
        Option(help="Whether a request may name a policy (assigned)."),
    ] = None,
    top_k: Annotated[int | None, Option(help="Most arms to rank (20).")] = None,
    most_arms: Annotated[int | None, Option(help="Most arms that a request names (100).")] = None,
    max_batch: Annotated[int | None, Option(help="Most requests of a batch (20).")] = None,
    max_text: Annotated[
        int | None,
        Option(help="Most characters of an id, a unit or a context string (128)."),
    ] = None,
    max_body: Annotated[int | None, Option(help="Most bytes of a request (16384).")] = None,
    rate_per_address: Annotated[
        str | None, Option(metavar="RATE", help='Rate of each address, or "none" (3000/minute).')
    ] = None,
    rate_per_unit: Annotated[
        str | None, Option(metavar="RATE", help='Rate of each unit, or "none" (300/minute).')
    ] = None,
    expires: Annotated[
        datetime | None,
        Option(parser=_time, metavar="WHEN", help="90d, 12h, or a day: 2030-01-31 (never)."),
    ] = None,
    file: KeysFile = None,
) -> int:
    """Make a key, and print it this once.

    Brackets hold the defaults. The limits among them are those of a key with origins; other keys
    have none.

        forage keys add --keys keys.json --name ops --scopes admin
    """
    path = _file(file)
    profile = {
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
        key = ApiKey.model_validate({**given, "id": key_id, "digest": digest, "created": now()})
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
        f"Kept in {path} as a hash alone: the key is shown this only time.\n"
        f"Revoke it with: forage keys revoke {key_id} --keys {path}",
        file=sys.stderr,
    )
    return 0


def _option(path: str) -> str:
    """Name the option of a field of the key."""
    field = path.removeprefix("profile.")
    by_field = {"batch": "max_batch", "text": "max_text", "body_bytes": "max_body"}
    return by_field.get(field, field).replace("_", "-")


def show(file: KeysFile = None) -> int:
    """List the keys, without their secrets."""
    from service.tables import aligned

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
        for key in read_keys(_file(file))
    ]
    print("\n".join(aligned(rows)))
    return 0


def revoke(
    wanted: Annotated[str, Argument(metavar="ID", help="Its id, or its name if unique.")],
    file: KeysFile = None,
) -> int:
    """Revoke a key; services refuse it within a second."""
    path = _file(file)
    read_keys(path)  # refuses a missing file, which `changing` would create
    with changing(path) as keys:
        index = _index(keys, wanted)
        keys[index] = keys[index].model_copy(update={"revoked": keys[index].revoked or now()})
        key = keys[index]
    print(f"{key.id} {key.name}: revoked; running services refuse it within a second")
    return 0


def _index(keys: list[ApiKey], wanted: str) -> int:
    """Find a key by its id, or by its name among the keys in force. Raises ConfigurationError."""
    by_id = [index for index, key in enumerate(keys) if key.id == wanted]
    named = [i for i, key in enumerate(keys) if key.name == wanted and key.revoked is None]
    if not by_id and len(named) > 1:
        ids = ", ".join(keys[index].id for index in named)
        raise ConfigurationError(f"several keys have the name {wanted!r}: {ids}")
    if not (found := by_id or named):
        near = suggestion(wanted, [key.name for key in keys if key.revoked is None])
        raise ConfigurationError(f"there is no key {quoted(wanted)} to revoke{near}")
    return found[0]
