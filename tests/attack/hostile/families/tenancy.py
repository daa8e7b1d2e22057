"""What a key is not good for: other tenants, other pages, more than its profile, all the slots."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from tests.attack.hostile.shots import ORIGIN, PAGE, TENANT, Arsenal, Attack

ANY: Final = "a key of one tenant reached the other"
PROFILE: Final = "a page's key may not"
EVIL: Final = "evil.example"


def key_profiles(arms: Arsenal, rng: Random) -> Attack:
    """What everybody who reads a page's source could send with its key."""
    page: dict[str, Any] = {"experiment": "attacker"}
    inline = [{"id": f"{number}", "features": {"price": 1e9}} for number in range(50)]
    while True:
        kinds: list[tuple[str, str, Any, str]] = [
            ("POST", "/select", {**page, "arms": inline}, f"{PROFILE} bring arms of its own"),
            ("POST", "/select", {**page, "policy": "random"}, f"{PROFILE} name a policy"),
            ("POST", "/select", {**page, "top_k": rng.choice([21, 40])},
             f"{PROFILE} rank more than 20"),
            ("POST", "/select", {"experiment": "victim"}, ANY),
            ("POST", "/reward", {"decision_id": rng.choice(arms.tokens), "reward": 1.0}, ANY),
            ("GET", "/metrics", None, f"{PROFILE} read metrics"),
            ("GET", "/experiments/attacker", None, f"{PROFILE} read a definition"),
            ("PUT", "/arms/evil", {"features": {}}, f"{PROFILE} change the catalogue"),
            ("POST", "/policies/linucb/reset", None, f"{PROFILE} reset a policy"),
            ("GET", f"/decisions/{rng.choice(arms.ids)}", None, f"{PROFILE} read decisions"),
            ("DELETE", "/units/somebody?experiment=attacker", None, f"{PROFILE} erase"),
            ("POST", "/experiments/attacker/evaluations", {}, f"{PROFILE} evaluate"),
            ("POST", "/select", {**page, "unit": f"{rng.getrandbits(40)}"}, ""),
        ]  # fmt: skip
        method, path, body, must_fail = rng.choice(kinds)
        draw, source = rng.random(), rng.randrange(8)
        if draw < 0.7:
            yield arms.ask(method, path, body, key=PAGE, must_fail=must_fail, source=source)
        elif draw < 0.8:
            headers = [f"Origin: {rng.choice(['https://evil.example', 'null', 'http://x'])}"]
            yield arms.ask(
                method, path, body, key=PAGE, headers=headers,
                must_fail="its page is of another origin", source=source,
            )  # fmt: skip
        elif draw < 0.9:
            key = rng.choice(["expired", "revoked"])
            yield arms.ask(method, path, body, key=key, must_fail=f"the key is {key}")
        else:
            texts = ["", "fk_", "fk_" + "0" * 81, "x" * 5_000, arms.keys[PAGE][:-1],
                     f"{arms.keys[PAGE]}, {arms.keys[TENANT]}", "\xff" * 100]  # fmt: skip
            headers = [f"X-API-Key: {rng.choice(texts)}", f"Origin: {ORIGIN}"]
            yield arms.ask(
                method, path, body, headers=headers, must_fail="it is no key", source=source
            )


def other_tenant(arms: Arsenal, rng: Random) -> Attack:
    """An admin of one tenant who asks for all that is the other's."""
    victim = "/experiments/victim"
    while True:
        token, known = rng.choice(arms.tokens), rng.choice(arms.ids)
        kinds: list[tuple[str, str, Any]] = [
            ("GET", victim, None),
            ("PUT", victim, {"policies": {"random": {"kind": "random"}}}),
            ("DELETE", victim, None),
            ("GET", f"{victim}/arms", None),
            ("PUT", f"{victim}/arms/evil", {"features": {"category": "toy", "price": 1e9}}),
            ("POST", f"{victim}/policies/linucb/reset", None),
            ("GET", f"{victim}/policies", None),
            ("POST", f"{victim}/policies/linucb/versions", b"forage1\n" + bytes(100)),
            ("POST", f"{victim}/evaluations", {}),
            ("POST", f"{victim}/skips", {"position": 1}),
            ("POST", f"{victim}/import", {"policy": "linucb", "visits": [
                {"id": "1", "at": 0, "arm": "toy-1", "propensity": 1.0}]}),
            ("GET", f"{victim}/readers", None),
            ("PUT", f"{victim}/readers/evil", {"position": 0, "row": 0}),
            ("DELETE", "/units/somebody?experiment=victim", None),
            ("DELETE", "/units/somebody", None),
            ("GET", "/experiments/victim%2f..%2fvictim", None),
            ("GET", "/experiments/attacker/../victim", None),
            ("GET", "//experiments/victim", None),
            ("GET", f"/decisions/{known}", None),
            ("GET", f"/decisions/{known}?experiment=victim", None),
            ("GET", f"/decisions/{known}?experiment=attacker", None),
            ("POST", f"/decisions/{known}/activate?experiment=victim", None),
            ("POST", "/select", {"experiment": "victim"}),
            ("POST", "/select", {"experiment": None}),
            ("POST", "/reward", {"decision_id": token, "reward": 0.0}),
            ("POST", "/reward", {"decision_id": token[:-2] + "AA", "reward": 0.0}),
            ("GET", "/metrics", None),
            ("GET", "/status", None),
        ]  # fmt: skip
        method, path, body = rng.choice(kinds)
        # /status may answer, of one's own experiments alone; so may a GET of a list.
        must_fail = "" if path == "/status" else ANY
        yield arms.ask(method, path, body, key=TENANT, must_fail=must_fail)
        batch = [{"decision_id": token, "reward": 1.0}, {"decision_id": "x", "reward": 1.0}]
        yield arms.ask("POST", "/reward/batch", {"requests": batch}, key=TENANT)


def rebinding(arms: Arsenal, rng: Random) -> Attack:
    """Pages of other sites: in a browser on the host of a service without keys, and of one with."""
    own = arms.open_host
    port = own.rpartition(":")[2]
    definition = {"policies": {"random": {"kind": "random"}}}
    changes: list[tuple[str, str, Any]] = [
        ("PUT", "/arms/evil", {"features": {}}),
        ("POST", "/policies/linucb/reset", None),
        ("PUT", "/experiments/evil", definition),
        ("DELETE", "/experiments/attacker", None),
        ("DELETE", "/units/somebody", None),
        ("POST", "/select", {}),
        ("POST", "/beacon", {"rewards": []}),
    ]
    reads = ["/experiments", "/experiments/attacker", "/arms", "/metrics", "/status"]
    hosts = [EVIL, f"{EVIL}:{port}", "localhost.evil.example", f"127.0.0.1.{EVIL}", "", "0x7f.1",
             f"evil@{own}", f"{own}.{EVIL}", "\xa0", "localhost:99999999"]  # fmt: skip
    while True:
        method, path, body = rng.choice(changes)
        host = rng.choice(hosts)
        kinds: list[tuple[str, list[str]]] = [
            (host, [f"Origin: http://{host}", "Sec-Fetch-Site: same-origin"]),
            (host, []),
            (own, [f"Origin: http://{EVIL}"]),
            (own, ["Origin: null"]),
            (own, ["Origin: null", "Sec-Fetch-Site: same-origin"]),
            (own, [f"Origin: http://{EVIL}", "Sec-Fetch-Site: cross-site"]),
            (own, ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"]),
            (own, [f"Origin: http://127.0.0.1:{int(port) - 1}", "Sec-Fetch-Site: same-site"]),
        ]
        named, headers = rng.choice(kinds)
        if named == host and rng.random() < 0.3:
            method, path, body = "GET", rng.choice(reads), None
        must_fail = "it came from a page of another site"
        asked = arms.ask(method, path, body, headers=headers, must_fail=must_fail)
        [whole] = asked.pieces
        line, _, rest = whole.partition(b"\r\n")
        if rng.random() < 0.8:
            _, _, rest = rest.partition(b"\r\n")
            named_line = f"Host: {named}\r\n".encode("latin-1")
            yield replace(asked, pieces=[line + b"\r\n" + named_line + rest], open_door=True)
        elif method != "GET" and path != "/experiments/attacker":
            # A page that got hold of a key says where it is from. What it reads its browser hides.
            headers = [f"Origin: http://{EVIL}", "Sec-Fetch-Site: cross-site"]
            where = path if path.startswith("/experiments") else f"/experiments/attacker{path}"
            yield arms.ask(method, where, body, key=TENANT, headers=headers, must_fail=must_fail)


def evaluations(arms: Arsenal, rng: Random) -> Attack:
    """All evaluations at once, of all that was logged, by policies that are slow to evaluate."""
    slow = {"kind": "lints", "draws": 16_384}
    wide = {"kind": "neural_linear_ts", "hidden": [2_048] * 8, "embedding": 2_048}
    while True:
        body = {
            "decisions": rng.choice([1, 1_000, 1_000_000]),
            "definition": rng.choice([{}, {"slow": slow}, {f"n{n}": slow for n in range(16)},
                                      {"wide": wide}]),
            "confidence": rng.choice([0.95, 5e-324, 1 - 1e-16]),
            "since": rng.choice([None, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]),
            "frozen": rng.random() < 0.3,
        }  # fmt: skip
        experiment = rng.choice(["attacker", "attacker-sum", "attacker-nets"])
        yield arms.ask("POST", f"/experiments/{experiment}/evaluations", body, key=TENANT)


TENANCY: Final[dict[str, Callable[[Arsenal, Random], Attack]]] = {
    "key profiles": key_profiles,
    "other tenant": other_tenant,
    "rebinding": rebinding,
    "evaluations": evaluations,
}
