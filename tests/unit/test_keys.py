"""Keys as data: what a key is, how one is recognised, what the file of them may say."""

import gc
import hmac
import json
import random
import re
import stat
import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
from pydantic import ValidationError

import service.security.keys
from service.errors import ConfigurationError
from service.security.keys import Key, KeyRing, changing, digest_of, loopback, mint, now, read_keys

BASE = {"id": "0" * 16, "name": "n", "digest": "0" * 64, "scopes": ["select"], "created": now()}


def made(**fields: Any) -> tuple[Key, str]:
    key_id, text = mint()
    known = BASE | {"id": key_id, "digest": digest_of(text.encode()).hex()}
    return Key(**known | fields), text


def test_a_key_names_itself_and_proves_itself_by_256_random_bits() -> None:
    key_id, text = mint()
    assert re.fullmatch(r"fk_[0-9a-f]{16}_[0-9a-f]{64}", text)
    assert text.split("_")[1] == key_id
    assert len({mint()[1] for _ in range(1_000)}) == 1_000


def test_the_file_of_a_key_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, text = made()
    with changing(path) as keys:
        keys.append(key)
    assert text.split("_")[2] not in path.read_text()
    assert text not in repr(key)
    assert key.digest not in repr(key)
    assert read_keys(path) == [key]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_whole_key_is_found() -> None:
    (one, text), (other, second) = made(), made()
    ring = KeyRing([(one, "one"), (other, "other")])
    assert ring.find(text.encode()) == "one"
    assert ring.find(second.encode()) == "other"
    for at in range(len(text)):
        changed = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
        assert ring.find(changed.encode()) is None, at
        assert ring.find(text[:at].encode()) is None, at
    mixed = second[: len("fk_") + 16] + text[len("fk_") + 16 :]
    for wrong in (mixed, text + "0", text + "\n", " " + text, text.upper(), text * 2):
        assert ring.find(wrong.encode()) is None


def test_every_wrong_key_takes_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """One digest of bounded length and one comparison of two whole digests, whatever is wrong."""
    hashed: list[int] = []
    compared: list[tuple[int, int]] = []

    def digest(text: bytes) -> bytes:
        hashed.append(len(text))
        return digest_of(text)

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    key, text = made()
    ring = KeyRing([(key, "known")])
    monkeypatch.setattr(service.security.keys, "digest_of", digest)
    monkeypatch.setattr(service.security.keys, "compare_digest", compare)
    wrong = [text[:at] + "x" + text[at + 1 :] for at in range(len(text))]
    for each in [*wrong, mint()[1], "", "fk", "x" * 100_000, text]:
        ring.find(each.encode())
    assert compared == [(32, 32)] * len(hashed)
    assert len(hashed) == len(wrong) + 5
    assert max(hashed) == len(text) + 1


@pytest.mark.statistics
def test_the_time_of_a_wrong_key_does_not_depend_on_its_prefix() -> None:
    """A key that is wrong from its first secret byte on, against one that is wrong in its last:
    the 10th percentile of 400 interleaved blocks of 100 each. The same key under two names says
    what the machine adds."""
    key, text = made()
    ring = KeyRing([(key, "known")] + [(made()[0], "other") for _ in range(100)])
    secret = text.rindex("_") + 1
    early = (text[:secret] + "x" * 64).encode()
    late = (text[:-1] + ("0" if text[-1] != "0" else "1")).encode()
    unknown = mint()[1].encode()
    kinds = {"early": early, "again": early, "late": late, "unknown": unknown}
    blocks: dict[str, list[float]] = {kind: [] for kind in kinds}
    rng = random.Random(1)
    gc.disable()
    try:
        for _ in range(400):
            for kind in rng.sample(list(kinds), len(kinds)):
                find, given = ring.find, kinds[kind]
                start = perf_counter_ns()
                for _ in range(100):
                    find(given)
                blocks[kind].append((perf_counter_ns() - start) / 100)
    finally:
        gc.enable()
    # The least of many is what the code itself takes; the rest is the machine.
    least = {kind: sorted(times)[len(times) // 10] for kind, times in blocks.items()}
    for kind in kinds:
        assert abs(least[kind] - least["early"]) < 0.05 * least["early"] + 20, least


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scopes": []}, "one scope at least"),
        ({"scopes": ["everything"]}, "'select', 'reward', 'admin' or 'metrics'"),
        ({"experiments": []}, "one experiment if any"),
        ({"experiments": ["no/name"]}, "match pattern"),
        ({"rate": "often"}, "no rate"),
        ({"rate": "0/second"}, "lets one request through"),
        ({"digest": "x" * 64}, "match pattern"),
        ({"secret": "x"}, "not permitted"),
        ({"expires": "2030-01-01T00:00:00"}, "timezone"),
        ({"origins": ["*"], "experiments": ["a"]}, "no wildcard"),
        ({"origins": ["null"], "experiments": ["a"]}, "no wildcard"),
        ({"origins": ["https://a.example/shop"], "experiments": ["a"]}, "no path"),
        ({"origins": ["http://a.example"], "experiments": ["a"]}, "https"),
        ({"origins": ["https://a.example"]}, "names its experiments"),
        ({"origins": ["https://a.example"], "experiments": ["a"], "scopes": ["select", "admin"]},
         "only select and reward"),
        ({"origins": ["https://a.example"], "experiments": ["a"], "scopes": ["metrics"]},
         "only select and reward"),
        ({"scopes": ["metrics"], "experiments": ["a"]}, "bound to none"),
    ],
)  # fmt: skip
def test_a_key_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Key(**BASE | fields)


def test_origins_are_as_browsers_send_them() -> None:
    given = ["https://Shop.Example:443/", "http://localhost:3000", "https://shop.example:8443"]
    key = Key(**BASE | {"origins": given, "experiments": ["a"]})
    assert key.origins == (
        "https://shop.example", "http://localhost:3000", "https://shop.example:8443",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "valid dictionary"),
        ('{"version": 2}', "version"),
        ('{"keyz": []}', "keyz"),
        ('{"keys": [{}]}', "keys.0.id"),
    ],
)
def test_a_broken_file_says_where_and_not_what(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=said) as fault:
        read_keys(path)
    assert str(path) in str(fault.value)


def test_a_fault_in_a_file_does_not_echo_what_stands_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, text = made()
    entry = json.loads(made()[0].model_dump_json()) | {"digest": text, "scopes": [text]}
    path.write_text(json.dumps({"keys": [entry]}))
    with pytest.raises(ConfigurationError) as fault:
        read_keys(path)
    assert text not in str(fault.value)


def test_two_keys_of_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entry = made()[0].model_dump_json()
    path.write_text(f'{{"keys": [{entry}, {entry}]}}')
    with pytest.raises(ConfigurationError, match="same id"):
        read_keys(path)


def test_keys_added_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def add() -> None:
        for _ in range(5):
            with changing(path) as keys:
                keys.append(made()[0])

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_keys(path)) == 20
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_file_keeps_its_mode_and_a_failed_change_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with changing(path) as keys:
        keys.append(made()[0])
    path.chmod(0o640)
    before = path.read_bytes()

    def change_and_fail() -> None:
        with changing(path) as keys:
            keys.clear()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_and_fail()
    assert path.read_bytes() == before
    with changing(path) as keys:
        keys.append(made()[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("", False),
        ("10.0.0.5", False),
        ("shop.example", False),
        ("localhost.evil.example", False),
    ],
)
def test_loopback_is_told_from_what_others_reach(host: str, alone: bool) -> None:
    assert loopback(host) is alone
