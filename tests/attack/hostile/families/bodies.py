"""Bodies: nested, broken and long."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.attack.hostile.shots import ORIGIN, PAGE, TENANT, Arsenal, Attack

ROUTES: Final = (
    ("POST", "/beacon"),
    ("POST", "/select"),
    ("POST", "/reward"),
    ("POST", "/select/batch"),
    ("POST", "/reward/batch"),
    ("PUT", "/experiments/attacker-new-0"),
    ("POST", "/experiments/attacker/evaluations"),
    ("POST", "/experiments/attacker/arms"),
    ("PUT", "/experiments/attacker/arms/one"),
    ("POST", "/experiments/attacker/import"),
)
NO_JSON: Final = "it is not a body of this route"


def nested(arms: Arsenal, rng: Random) -> Attack:
    """Lists and objects within each other, and what is no JSON."""
    depths = [100, 1_000, 20_000, 400_000]
    while True:
        depth = rng.choice(depths)
        bodies = [
            b"[" * depth,
            b"[" * depth + b"]" * depth,
            b'{"a":' * min(depth, 100_000) + b"1" + b"}" * min(depth, 100_000),
            b'{"context":' + b"[" * depth + b"]" * depth + b"}",
            b'{"rewards":[' + b"[" * depth + b"]" * depth + b"]}",
            b'{"requests":[' + b"[" * depth + b"]" * depth + b"]}",
            b'{"context":{"age":' + b"9" * 100_000 + b"}}",
            b'{"context":{"age":1e400}}',
            b'{"context":{"age":NaN}}',
            b'{"context":{"age":-Infinity}}',
            b'{"context":{"age":' + b"1" * 5_000 + b".5e-5000}}",
            b'{"a":1,' * 1_000,
            b"\xff\xfe" * 1_000,
            b'\xef\xbb\xbf{"context":{"a":1}}',
            b'{"context":{"\\ud800":1}}',
            b'{"unit":"\\udfff","x":1}',
            b'"' + b"\\u0000" * 10_000,
            b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(50_000)) + b"}",
            b"null",
            b"",
        ]
        method, path = rng.choice(ROUTES)
        coding = rng.choice([(), (), (), ("Content-Encoding: gzip", "Content-Type: text/json")])
        body, key = rng.choice(bodies), rng.choice([TENANT, TENANT, PAGE, ""])
        # A batch is answered 200 with the fault of each item.
        fails = "" if path.endswith("/batch") and body.startswith(b'{"requests"') else NO_JSON
        yield arms.ask(
            method, path, body, key=key, headers=coding, must_fail=fails, source=rng.randrange(8)
        )


def beacons(arms: Arsenal, rng: Random) -> Attack:
    """What a page may say when it is left, with as many parts as it takes and more."""
    while True:
        decisions = rng.choice([1, 199, 200, 201, 1_000])
        key = rng.choice([arms.keys[PAGE], "fk_" + "x" * 1_000, "\u20ac", None])
        rewards: list[Any] = [
            rng.choice([None, [], {}, 1e308, {"decision_id": rng.choice(arms.tokens), "reward": 1}])
            for _ in range(decisions)
        ]
        activate = [{"id": rng.choice(arms.ids)} for _ in range(rng.choice([0, 1, 200]))]
        body = {"key": key, "rewards": rewards, "activate": activate}
        origin = rng.choice([f"Origin: {ORIGIN}", "Origin: null", f"Origin: http://{arms.host}"])
        yield arms.ask(
            "POST", "/beacon", body, headers=["Content-Type: text/plain", origin],
            source=rng.randrange(8),
        )  # fmt: skip


BODIES: Final[dict[str, Callable[[Arsenal, Random], Attack]]] = {
    "nested bodies": nested,
    "beacons": beacons,
}
