"""Keys as data: what a key is, how one is recognised, what the file of them may say."""

import hmac
import json
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import service.security.keys
from service.errors import ConfigurationError
from service.security.keys import (
    ApiKey,
    KeyRing,
    changing,
    digest_of,
    loopback,
    mint,
    now,
    read_keys,
)

BASE = {"id": "0" * 16, "name": "n", "digest": "0" * 64, "scopes": ["select"], "created": now()}


def made(**fields: Any) -> tuple[ApiKey, str]:
    key_id, text = mint()
    known = BASE | {"id": key_id, "digest": digest_of(text.encode()).hex()}
    return ApiKey(**known | fields), text


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
    assert re.fullmatch(rf"fk_{one.id}_[0-9a-f]{{64}}", text)
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


PAGE = {"origins": ["https://a.example"], "experiments": ["a"]}


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
        (PAGE | {"origins": ["*"]}, "no wildcard"),
        (PAGE | {"origins": ["null"]}, "no wildcard"),
        (PAGE | {"origins": ["https://a.example/shop"]}, "no path"),
        (PAGE | {"origins": ["http://a.example"]}, "https"),
        ({"origins": ["https://a.example"]}, "names its experiments"),
        (PAGE | {"scopes": ["select", "admin"]}, "only select and reward"),
        (PAGE | {"scopes": ["metrics"]}, "only select and reward"),
        ({"scopes": ["metrics"], "experiments": ["a"]}, "bound to none"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ApiKey(**BASE | fields)


def test_origins_are_as_browsers_send_them() -> None:
    given = ["https://Shop.Example:443/", "http://localhost:3000", "https://shop.example:8443"]
    known = ApiKey(**BASE | {"origins": given, "experiments": ["a"]}).origins
    assert known == ("https://shop.example", *given[1:])


def test_a_broken_file_says_where_and_not_what(tmp_path: Path) -> None:
    path, (key, text) = tmp_path / "keys.json", made()
    whole = key.model_dump_json()
    wrong = json.dumps(json.loads(whole) | {"digest": text, "scopes": [text]})
    for content, said in (
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be an object"),
        ('{"keys": [{"scopes": [], "scopes": ["admin"]}]}', "keys.0.scopes: is given more"),
        ('{"version": 2}', "version"),
        ('{"keyz": []}', "keyz"),
        ('{"keys": [{}]}', "keys.0.id"),
        (f'{{"keys": [{whole}, {whole}]}}', "same id"),
        (f'{{"keys": [{wrong}]}}', "keys.0.digest"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigurationError, match=said) as fault:
            read_keys(path)
        assert str(path) in str(fault.value)
        assert text not in str(fault.value)


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


def test_loopback_is_told_from_addresses_that_others_reach() -> None:
    assert all(map(loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    others = ("0.0.0.0", "::", "", "10.0.0.5", "shop.example", "localhost.evil.example")  # noqa: S104
    assert not any(map(loopback, others))
