"""The requests of a load test, made from the definition of the service's experiment."""

import json
import random
import re
from collections.abc import Mapping
from math import floor, inf, log10
from typing import Any, Final
from urllib.parse import urlsplit

from forage_client import ClientError, Problem

from simulator_client.client import Client
from simulator_client.errors import UsageError
from simulator_client.wire import Origin

Json = dict[str, Any]

NUMBER: Final = "<number>"
"""Text that stands where a request has its number, and is as long as one."""
NUMBER_DIGITS: Final = len(NUMBER)
NUMBERS: Final = 10**NUMBER_DIGITS
CONTEXTS: Final = 512  # drawn contexts; each request puts its own number into one
CONTEXTS_BYTES: Final = 8_000_000  # of all of them: each may list ten thousand arms
DIGITS: Final = 15  # that a double tells apart
STANDARD_DEVIATIONS: Final = 1.5
REWARDS: Final = 10
HIGH_REWARDS: Final = 3  # of ten, at the upper end of the range
HEADERS: Final = "User-Agent: forage-sim\r\nContent-Type: application/json\r\n"


class Requests:
    """The bytes of each request.

    numbered: whether the contexts hold a number that never repeats.
    """

    def __init__(
        self,
        url: str,
        definition: Json,
        fixed: Mapping[str, Any],
        *,
        arms: bool = False,
        fresh: bool = True,
        headers: str = HEADERS,
        seed: int = 1,
    ) -> None:
        """Draw the contexts.

        fixed    other fields of each select: experiment, policy
        arms     list the ids of all arms in each select
        fresh    give each context a number that never repeats, if a feature can hold one
        headers  whole lines, with NUMBER in any place
        """
        rng, features = random.Random(seed), definition["features"].get("context", {})
        self._url, self._headers = url, headers
        listed = {"arms": list(definition["arms"])} if arms else {}
        self._selects: list[bytes] = []
        size = 0
        while not self._selects or (
            features and len(self._selects) < CONTEXTS and size < CONTEXTS_BYTES
        ):
            asked = {**fixed, "context": context(features, rng, fresh=fresh), **listed}
            text = json.dumps(asked, separators=(",", ":"))
            body = re.sub(rf'"(-?[\d.]+{NUMBER})"', r"\1", text).encode()
            self.numbered = NUMBER.encode() in body
            self._selects.append(self._request("/select", body))
            size += len(body)
        low, high = definition.get("reward", {}).get("range", (0.0, 1.0))
        self._rewards = [json.dumps(high if k < HIGH_REWARDS else low) for k in range(REWARDS)]
        self._select_number = self._reward_number = 0

    def select(self) -> bytes:
        self._select_number += 1
        request = self._selects[self._select_number % len(self._selects)]
        return _numbered(request, self._select_number)

    def reward(self, token: bytes) -> bytes:
        self._reward_number += 1
        value = self._rewards[self._reward_number % REWARDS].encode()
        body = b'{"decision_id":"%b","reward":%b}' % (token, value)
        return _numbered(self._request("/reward", body), self._reward_number)

    def _request(self, path: str, body: bytes) -> bytes:
        where = urlsplit(self._url)
        start = f"POST {where.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
        head = f"{start}{self._headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def _numbered(request: bytes, number: int) -> bytes:
    return request.replace(NUMBER.encode(), b"%08d" % (number % NUMBERS))


def origin_of(url: str) -> Origin:
    where = urlsplit(url)
    return Origin(
        where.scheme, where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
    )


async def requests_for(
    client: Client,
    experiment: str | None,
    policy: str | None = None,
    *,
    arms: bool = False,
    fresh: bool = True,
    seed: int = 1,
) -> tuple[str, Requests]:
    """Make requests for an experiment of a service, and send one to see that they are valid;
    return the experiment's name as well.

    Raises UsageError for names that the service does not know, ClientError if it refuses.
    """
    try:
        if experiment is None:
            names = await client.experiments()
            if len(names) != 1:
                raise UsageError(f"name one with --experiment: {', '.join(names) or 'none exists'}")
            experiment = names[0]
        found = await client.get_experiment(experiment)
        if found is None:
            raise UsageError(f"the service has no experiment {experiment!r}")
        definition = found["definition"]
        if policy is not None and policy not in definition["policies"]:
            known = ", ".join(definition["policies"])
            raise UsageError(f"experiment {experiment!r} has no policy {policy!r}: {known}")
        if arms and not definition["arms"]:
            raise UsageError(f"experiment {experiment!r} has no arms to list")
        fixed = {"experiment": experiment} | ({"policy": policy} if policy else {})
        headers = HEADERS + (f"Authorization: Bearer {client.key}\r\n" if client.key else "")
        requests = Requests(
            client.urls[0], definition, fixed, arms=arms, fresh=fresh, headers=headers, seed=seed
        )
        await client.select(json.loads(requests.select().partition(b"\r\n\r\n")[2]))
    except Problem as problem:
        raise ClientError(f"the service refuses such a request: {problem}") from problem
    return experiment, requests


def context(features: Mapping[str, Json], rng: random.Random, *, fresh: bool) -> Json:
    """Draw a context: any category, and numbers around their centre.

    fresh: the first number (or the first of a vector) ends in NUMBER.
    """
    drawn = {name: _value(feature, rng) for name, feature in features.items()}
    numeric = sorted(
        (name for name in features if features[name]["type"] in ("numeric", "vector")),
        key=lambda name: features[name]["type"],  # numeric before vector
    )
    if fresh and numeric:
        name = numeric[0]
        text = f"{_around(features[name], rng):.{_decimals(features[name])}f}{NUMBER}"
        is_vector = features[name]["type"] == "vector"
        drawn[name] = [text, *drawn[name][1:]] if is_vector else text
    return drawn


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
    return float(f"{rng.uniform(*_usual(feature)):.8g}")


def _usual(feature: Json) -> tuple[float, float]:
    """Return the ends of the usual values: within two scales of the center, and well within `min`
    and `max`. A service sends null for what the definition leaves out."""
    least, most = feature.get("min"), feature.get("max")
    least, most = -inf if least is None else float(least), inf if most is None else float(most)
    center = min(max(float(feature.get("center") or 0.0), least), most)
    spread = STANDARD_DEVIATIONS * float(feature.get("scale") or 1.0)
    low, high = max(center - spread, least), min(center + spread, most)
    margin = (high - low) / 50
    return low + margin, high - margin


def _decimals(feature: Json) -> int:
    """Return how many decimals come before the request's number: it changes the value by less than
    a hundredth of the usual scale, and a double still tells its digits apart."""
    low, high = _usual(feature)
    scale = (high - low) / (2 * STANDARD_DEVIATIONS) or 1.0
    room = DIGITS - NUMBER_DIGITS - len(str(int(max(abs(low), abs(high)))))
    return max(1, min(room, 2 - floor(log10(scale))))


def token_of(body: bytes) -> bytes:
    """Find the decision's token without parsing the answer; b"" if it has none."""
    _, _, rest = body.partition(b'"decision_id"')
    return rest.partition(b'"')[2].partition(b'"')[0]


def is_unlogged(body: bytes) -> bool:
    """Tell whether the decision was not in the log yet when it was answered."""
    return b'"logged":false' in body or b'"logged": false' in body
