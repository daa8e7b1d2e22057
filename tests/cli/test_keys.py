"""forage keys, and a service that asks for them: as processes of their own."""

import asyncio
import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from service.cli.program import main
from service.security.keys import read_keys
from service.security.profile import STRICT, UNLIMITED
from tests.cli.forage import Serving, expect_refusal, forage, serving

KEY = re.compile(r"fk_[0-9a-f]{16}_[0-9a-f]{64}")


def add(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the key, which alone is on stdout, so that a script can take it."""
    assert main(["keys", "add", "--keys", str(path), *options]) == 0
    told = capsys.readouterr()
    assert "only time" in told.err
    assert not KEY.search(told.err)
    return told.out.removesuffix("\n")


def test_a_key_is_printed_once_and_kept_as_a_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    text = add(path, capsys, "--name", "ops", "--scopes", "admin,metrics")
    assert KEY.fullmatch(text)
    assert text[20:] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["keys", "list", "--keys", str(path)]) == 0
    told = capsys.readouterr().out
    assert text[3:19] in told
    assert "admin,metrics" in told
    assert text[20:] not in told


def test_a_key_is_revoked_by_its_id_or_by_a_name_that_it_alone_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    first = add(path, capsys, "--name", "web", "--scopes", "select")
    second = add(path, capsys, "--name", "web", "--scopes", "select")
    assert main(["keys", "revoke", "--keys", str(path), "web"]) == 1
    told = capsys.readouterr().err
    assert first[3:19] in told
    assert second[3:19] in told
    assert main(["keys", "revoke", "--keys", str(path), first[3:19]]) == 0
    assert main(["keys", "revoke", "--keys", str(path), "web"]) == 0
    assert main(["keys", "revoke", "--keys", str(path), "web"]) == 1
    assert "there is no key 'web' to revoke" in capsys.readouterr().err
    assert main(["keys", "list", "--keys", str(path)]) == 0
    assert capsys.readouterr().out.count("revoked") == 2


def test_a_profile_is_said_by_options_and_kept_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    page = ["--scopes", "select", "--experiments", "a", "--origins", "https://shop.example"]
    add(path, capsys, "--name", "page", *page)
    add(path, capsys, "--name", "wide", *page, "--arms", "any", "--rate-per-unit", "none")
    add(path, capsys, "--name", "narrow", "--scopes", "select", "--top-k", "3", "--max-body", "99")
    limits = {key.name: key.limits for key in read_keys(path)}
    assert limits["page"] == STRICT
    assert limits["wide"] == structs.replace(STRICT, inline=True, unit=None)
    assert limits["narrow"] == structs.replace(UNLIMITED, top_k=3, body_bytes=99)
    assert "profile" not in json.loads(path.read_text())["keys"][0]
    assert main(["keys", "list", "--keys", str(path)]) == 0
    assert "top_k=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--scopes everything", "--scopes must be 'select'"),
        ("--scopes select --origins https://shop.example", "names its experiments"),
        ("--scopes admin --experiments a --origins https://shop.example", "only select and reward"),
        ("--scopes select --experiments a --origins http://shop.example", "--origins"),
        ("--scopes select --rate often", "--rate"),
        ("--scopes select --rate-per-unit often", "--rate-per-unit"),
        ("--scopes select --max-batch 0", "--max-batch"),
        ("--scopes select --expires 2001-01-01", "has passed already"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    path = tmp_path / "keys.json"
    assert main(["keys", "add", "--keys", str(path), "--name", "x", *options.split()]) == 1
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert not path.exists()


@pytest.mark.parametrize("action", ["list", "revoke x"])
def test_a_file_that_is_not_there_is_not_made_by_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    assert main(["keys", *action.split(), "--keys", str(tmp_path / "keys.json")]) == 1
    assert "there is no such file of keys" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- a service that asks for keys ------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.9.8.7"])  # noqa: S104
def test_beyond_loopback_nothing_is_served_without_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    assert main(["serve", "--host", host, "--port", "0", "--store", "memory://"]) == 1
    told = capsys.readouterr().err
    assert f"{host} can be reached from other hosts" in told
    assert "forage keys add" in told
    assert "FORAGE_OPEN=true" in told


@pytest.mark.parametrize(
    ("content", "opened", "said"),
    [("{}}", "false", "keys.json: is not JSON"), ('{"keys": []}', "true", "FORAGE_OPEN")],
)
def test_a_service_does_not_start_on_broken_keys_or_on_keys_that_it_does_not_ask_for(
    tmp_path: Path, content: str, opened: str, said: str
) -> None:
    (tmp_path / "keys.json").write_text(content)
    asked = "serve --keys keys.json --port 0 --store memory://"
    assert said in expect_refusal(forage(*asked.split(), folder=tmp_path, FORAGE_OPEN=opened))


@pytest.mark.process
@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127.0.0.1", "requests need no key"),
        ("0.0.0.0", "FORAGE_OPEN: requests need no key, and anyone who reaches"),  # noqa: S104
    ],
)
def test_a_service_without_keys_warns(tmp_path: Path, host: str, said: str) -> None:
    settings = {} if host == "127.0.0.1" else {"FORAGE_OPEN": "true"}
    with serving(tmp_path, "--store", "memory://", "--host", host, **settings) as running:
        assert said in running.said


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Path]]:
    """On every address, with a trainer that has no key of its own."""
    folder = tmp_path_factory.mktemp("guarded")
    ended = forage("keys", "add", "--keys", "keys.json", "--name", "ops", "--scopes",
                   "admin,select,reward,metrics", folder=folder)  # fmt: skip
    (folder / "key").write_text(ended.stdout.strip())
    for name in ("zooplus", "elsewhere"):
        ended = forage("keys", "add", "--keys", "keys.json", "--name", name, "--scopes",
                       "select,reward", "--experiments", name, folder=folder)  # fmt: skip
        (folder / name).write_text(ended.stdout.strip())
    with serving(folder, "--keys", "keys.json", "--host", "0.0.0.0",  # noqa: S104
                 "--trainer", "on", "--log-level", "debug") as running:  # fmt: skip
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        running.client.base_url = httpx.URL(running.url)
        yield running, folder


@pytest.mark.process
@pytest.mark.parametrize(
    "target",
    [
        "//select", "/select/", "/SELECT", "/%73elect", "/select%2F", "/./select",
        "/healthz/../select",
        "/select?key={key}", "/select#", "http://127.0.0.1/select", "*",
    ],
)  # fmt: skip
def test_no_way_of_writing_a_target_leads_past_the_keys(
    guarded: tuple[Serving, Path], target: str
) -> None:
    """As bytes on the wire: what clients tidy up, an attacker does not."""
    import socket

    running, folder = guarded
    target = target.replace("{key}", (folder / "key").read_text())
    url = httpx.URL(running.url)
    body = b'{"context": {"persona": "cat_connoisseur"}}'
    head = (
        f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert re.match(rb"HTTP/1.1 (400|401) ", answer), answer[:200]
    assert b"decision_id" not in answer


@pytest.mark.process
def test_requests_that_are_served_together_are_each_held_to_their_own_key(
    guarded: tuple[Serving, Path],
) -> None:
    """On connections of their own, and so at the same time: what is decided together, is not by
    the key of one."""
    running, folder = guarded
    names = ["zooplus", "elsewhere", "none"] * 40
    headers = {
        name: {"Authorization": f"Bearer {(folder / name).read_text()}"}
        for name in ("zooplus", "elsewhere")
    }
    question = {"context": {"persona": "cat_connoisseur"}, "policy": "linucb"}

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=30) as client:
            answers = await asyncio.gather(
                *(client.post("/select", json=question, headers=headers.get(n)) for n in names)
            )
        return [answer.status_code for answer in answers]

    expected = {"zooplus": 200, "elsewhere": 403, "none": 401}
    for _ in range(3):
        assert asyncio.run(ask()) == [expected[name] for name in names]


@pytest.mark.process
def test_a_header_that_is_huge_or_folded_is_refused(guarded: tuple[Serving, Path]) -> None:
    running, _ = guarded
    for value in (b"Bearer " + b"f" * 50_000, b"Bearer \xff\xfe\xfd"):
        answer = running.client.get("/experiments", headers={b"Authorization": value})
        assert answer.status_code in (400, 401, 431)
    assert running.client.get("/healthz").status_code == 200


@pytest.mark.process
def test_the_trainer_of_a_guarded_service_hands_over_what_it_trained(
    guarded: tuple[Serving, Path],
) -> None:
    running, folder = guarded
    running.client.headers["X-API-Key"] = (folder / "key").read_text()
    try:
        for number in range(256):
            running.visit("neural_linear_ts", float(number % 2))
        deadline = time.monotonic() + 60
        while running.get("/policies/neural_linear_ts")["version"] < 1:
            assert time.monotonic() < deadline, running.said
            time.sleep(0.2)
    finally:
        del running.client.headers["X-API-Key"]


@pytest.mark.process
def test_no_key_is_in_the_log(guarded: tuple[Serving, Path]) -> None:
    """After all that was asked above, at level debug."""
    running, folder = guarded
    text = (folder / "key").read_text()
    running.client.get(f"/experiments?api_key={text}", headers={"X-API-Key": text})
    running.client.post("/select", content=text, headers={"X-API-Key": text})
    running.client.get(f"/{text}", headers={"X-API-Key": text})
    assert not KEY.search(running.said)
    assert text[20:] not in running.said


@pytest.mark.process
def test_import_sends_the_key_of_the_environment(guarded: tuple[Serving, Path]) -> None:
    running, folder = guarded
    (folder / "visits.jsonl").write_text(
        '{"id": "1", "at": 1700000000, "context": {"persona": "cat_connoisseur"}, "arm": "1", '
        '"propensity": 0.5, "reward": 1.0}\n'
    )
    arguments = ("import", "visits.jsonl", "--experiment", "zooplus", "--policy", "linucb",
                 "--url", running.url)  # fmt: skip
    refused = forage(*arguments, folder=folder)
    assert refused.returncode == 1
    assert "key" in refused.stderr
    taken = forage(*arguments, folder=folder, FORAGE_KEY=(folder / "key").read_text())
    assert taken.returncode == 0, taken.stderr
