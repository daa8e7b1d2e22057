"""Requests of a load test, from the experiment that the service has."""

import json
import random
from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any, Final
from urllib.parse import urlsplit

Json = dict[str, Any]

TEMPLATES: Final = 512  # contexts that are drawn; the number of the request goes into each
TEMPLATES_BYTES: Final = 8_000_000  # of all of them, about: ten thousand arms may be in each
DIGITS: Final = 15  # that a double tells apart, the request's number among them
NUMBER_DIGITS: Final = 8
STANDARD_DEVIATIONS: Final = 1.5
LIKED: Final = 0.3  # share of rewards at the upper end of their range
REWARDS: Final = 10
SLOT: Final = "\x00"


def context(features: Mapping[str, Json], rng: random.Random, *, fresh: bool) -> Json:
    """A context of the schema: categories drawn, numbers around their centre.

    fresh: the first number (of a vector, if there is no other) ends in SLOT, which the number of a
    request takes.
    """
    drawn = {name: _value(feature, rng) for name, feature in features.items()}
    varied = _varied(features) if fresh else None
    if varied is not None:
        feature = features[varied]
        text = _slotted(_around(feature, rng), feature)
        drawn[varied] = [text, *drawn[varied][1:]] if feature["type"] == "vector" else text
    return drawn


def _varied(features: Mapping[str, Json]) -> str | None:
    for kind in ("numeric", "vector"):
        for name, feature in features.items():
            if feature["type"] == kind:
                return name
    return None


def _value(feature: Json, rng: random.Random) -> Any:
    match feature["type"]:
        case "numeric":
            return _around(feature, rng)
        case "boolean":
            return rng.random() < 0.5
        case "categorical":
            return rng.choice(feature["values"])
        case "hashed":
            return f"value-{rng.randrange(10 * feature['buckets'])}"
        case _:
            return [_around(feature, rng) for _ in range(feature["size"])]


def _around(feature: Json, rng: random.Random) -> float:
    spread = STANDARD_DEVIATIONS * float(feature.get("scale", 1.0))
    return float(f"{float(feature.get('center', 0.0)) + rng.uniform(-spread, spread):.8g}")


def _slotted(value: float, feature: Json) -> str:
    """A number whose last digits are a request's: they change it by less than scale / 100.

    Eight digits after those that matter, as far as a double tells them apart.
    """
    scale = float(feature.get("scale", 1.0))
    largest = abs(float(feature.get("center", 0.0))) + STANDARD_DEVIATIONS * scale
    room = DIGITS - NUMBER_DIGITS - len(str(int(largest)))
    decimals = max(1, min(room, 2 - floor(log10(scale))))
    return f"{value:.{decimals}f}{SLOT}"


def select_body(asked: Mapping[str, Any]) -> tuple[str, bool]:
    """JSON without blanks, and whether there is a SLOT in it: then it is a format of bytes, in
    which %08d stands for the slot."""
    text = json.dumps(asked, separators=(",", ":"))
    before, found, after = text.partition(json.dumps(SLOT)[1:-1])
    if not found:
        return text, False
    before, after = before.replace("%", "%%"), after.replace("%", "%%")
    # It was written as a string; without the quotes it is the number.
    start, _, number = before.rpartition('"')
    return f"{start}{number}%08d{after[1:]}", True


def whole_request(
    url: str, path: str, body: str, *, slotted: bool = False, key: str | None = None
) -> str:
    """POST it, with its length; of a format, that of what it makes."""
    if not slotted:
        return f"{head(url, path, key)}{len(body)}\r\n\r\n{body}"
    start = head(url, path, key).replace("%", "%%")
    return f"{start}{len(body % 0)}\r\n\r\n{body}"


def head(url: str, path: str, key: str | None = None) -> str:
    """Request line and headers, up to the length of the body."""
    where = urlsplit(url)
    shown = "" if key is None else f"Authorization: Bearer {key}\r\n"
    return (
        f"POST {where.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {where.netloc}\r\n{shown}"
        "User-Agent: forage-sim\r\nContent-Type: application/json\r\nContent-Length: "
    )


def selects(
    url: str,
    definition: Json,
    asked: Mapping[str, Any],
    arms: Sequence[str] | None,
    rng: random.Random,
    *,
    fresh: bool,
    key: str | None = None,
) -> tuple[list[str], bool]:
    """Requests for decisions in TEMPLATES contexts of the experiment (or fewer, where they are
    long), and whether each is a format with a place for its number.

    asked: what else is in each (experiment, policy). arms: spelled out, None leaves them out.
    """
    features = definition["features"].get("context", {})
    more = {"arms": list(arms)} if arms is not None else {}
    requests: list[str] = []
    slotted, size = False, 0
    while not requests or (features and len(requests) < TEMPLATES and size < TEMPLATES_BYTES):
        drawn = context(features, rng, fresh=fresh)
        body, slotted = select_body({**asked, "context": drawn, **more})
        requests.append(whole_request(url, "/select", body, slotted=slotted, key=key))
        size += len(body)
    return requests, slotted


def rewards(definition: Json) -> list[str]:
    """Bodies of rewards: the ends of their range, the upper one for LIKED of them."""
    low, high = definition.get("reward", {}).get("range", (0.0, 1.0))
    values = [high if number < LIKED * REWARDS else low for number in range(REWARDS)]
    return [f'{{"decision_id":"%s","reward":{json.dumps(value)}}}' for value in values]
