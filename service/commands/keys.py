"""forage keys: make, list and revoke the API keys of a service."""

import re
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.commands.running import Command
from service.errors import ConfigurationError
from service.settings import Settings

if TYPE_CHECKING:
    from service.keys import Key

UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        metavar="FILE",
        help="where they are kept (FORAGE_KEYS); holds no key, only hashes",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="add | list | revoke")
    add = actions.add_parser("add", help="make a key, and print it this once")
    add.add_argument("--name", required=True, help="who has it: shop-web, prometheus")
    add.add_argument(
        "--scopes",
        required=True,
        type=_names,
        metavar="A,B",
        help="what it is good for: select, reward, admin, metrics",
    )
    add.add_argument(
        "--experiments", type=_names, metavar="A,B", help="it is good for these alone (all)"
    )
    add.add_argument(
        "--origins",
        type=_names,
        default=(),
        metavar="A,B",
        help="it is for browsers, in pages of these: https://shop.example",
    )
    add.add_argument("--rate", metavar="RATE", help='of requests: "100/second" (no limit)')
    _add_profile(add)
    add.add_argument(
        "--expires", type=_time, metavar="WHEN", help="90d, 12h, or a day: 2030-01-31 (never)"
    )
    actions.add_parser("list", help="what there is, without the keys themselves")
    revoke = actions.add_parser("revoke", help="a key that services take no more, within a second")
    revoke.add_argument("key", metavar="ID", help="its id, or its name where one alone has it")
    for each in actions.choices.values():  # before or after the action
        each.add_argument("--keys", metavar="FILE", default=SUPPRESS, help="as above")


def _add_profile(add: ArgumentParser) -> None:
    """What requests with the key may contain; in brackets what holds for a key with origins."""
    add.add_argument(
        "--arms", choices=("catalogue", "any"), help="arms that may be named (catalogue)"
    )
    add.add_argument(
        "--policies", choices=("assigned", "named"), help="whether one may be named (assigned)"
    )
    for name, what in (
        ("top-k", "arms that are ranked (20)"),
        ("most-arms", "arms that are named (100)"),
        ("max-batch", "requests of a batch (20)"),
        ("max-text", "characters of an id, a unit or a string of the context (128)"),
        ("max-body", "bytes of a request (16384)"),
    ):
        own = f"profile_{name}".replace("-", "_")  # the service has settings of some of the names
        add.add_argument(f"--{name}", dest=own, type=int, metavar="N", help=f"at most: {what}")
    for who, rate in (("address", "3000/minute"), ("unit", "300/minute")):
        add.add_argument(
            f"--rate-per-{who}", metavar="RATE", help=f'of each {who}, or "none" ({rate})'
        )


PROFILE = {
    "arms": "arms",
    "policies": "policies",
    "profile_top_k": "top_k",
    "profile_most_arms": "most_arms",
    "profile_max_batch": "batch",
    "profile_max_text": "text",
    "profile_max_body": "body_bytes",
    "rate_per_address": "rate_per_address",
    "rate_per_unit": "rate_per_unit",
}
"""Fields of a key's profile, by the option that says them."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _time(text: str) -> datetime:
    """Of a span from now, or of a day in UTC."""
    if span := re.fullmatch(r"(\d{1,5})([hdw])", text):
        return datetime.now(UTC).replace(microsecond=0) + timedelta(
            **{UNITS[span[2]]: int(span[1])}
        )
    try:
        found = datetime.fromisoformat(text)
    except ValueError as fault:
        raise ArgumentTypeError(f"{text!r} is neither 90d nor 2030-01-31") from fault
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def run(settings: Settings, options: dict[str, Any]) -> int:
    """Raises ConfigurationError for a file that cannot be read or written, or a key that fits
    nothing."""
    if settings.keys is None:
        raise ConfigurationError("say which file: --keys keys.json, or FORAGE_KEYS=keys.json")
    action: Callable[[Path, dict[str, Any]], int] = ACTIONS[options["action"]]
    return action(settings.keys, options)


def _add(path: Path, options: dict[str, Any]) -> int:
    from pydantic import ValidationError

    from service.faults import faults_of
    from service.keys import Key, changing, digest_of, mint, now

    key_id, text = mint()
    chosen = {
        name: options[name]
        for name in ("name", "scopes", "experiments", "origins", "rate", "expires")
    }
    said = {field: options[option] for option, field in PROFILE.items()}
    if profile := {field: value for field, value in said.items() if value is not None}:
        chosen["profile"] = profile
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
    by_field = {own: option for option, own in PROFILE.items()}
    return by_field.get(field, field).removeprefix("profile_").replace("_", "-")


def _list(path: Path, options: dict[str, Any]) -> int:
    from service.findings import aligned
    from service.keys import now, read_keys

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
        for key in read_keys(path)
    ]
    print("\n".join(aligned(rows)))
    return 0


def _revoke(path: Path, options: dict[str, Any]) -> int:
    from service.keys import changing, now, read_keys

    wanted: str = options["key"]
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


ACTIONS = {"add": _add, "list": _list, "revoke": _revoke}

COMMAND = Command(
    "make, list and revoke API keys",
    add_options,
    run,
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
)
