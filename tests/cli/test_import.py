"""forage import: files into a running service, as docs/import.md tells it."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pyarrow
import pytest
from pyarrow import parquet

from service.errors import ConfigurationError, StoreUnavailable
from service.offline import import_client
from service.offline.import_client import Importing
from tests.cli.forage import Serving, expect_refusal, forage, serving, started
from tests.unit.test_dsjson import COFFEE, DANGLING

DOCS = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", DOCS, re.DOTALL)
ARGUMENTS = ["--experiment", "zooplus", "--policy", "linucb", "--url"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as running:
        yield running


def lines_of(visits: int) -> list[str]:
    same = {"context": {"persona": "cat_connoisseur"}, "propensity": 0.02}
    return [
        json.dumps({"id": n, "at": 1.7e9 + n, "arm": n % 50, "reward": n % 2, **same})
        for n in range(visits)
    ]


@pytest.mark.process
def test_the_example_of_the_documentation_is_imported(running: Serving, tmp_path: Path) -> None:
    by_kind = dict(reversed(BLOCKS))
    (tmp_path / "visits.jsonl").write_text(by_kind["json"])
    (tmp_path / "visits.csv").write_text(by_kind["csv"])
    ended = started("import", "visits.jsonl", *ARGUMENTS, running.url, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == by_kind[""]
    ended = forage("import", "visits.csv", *ARGUMENTS, running.url, folder=tmp_path)
    assert ended.stdout.splitlines()[1].split() == ["linucb", "2", "0", "0"]
    policy = running.get("/policies/linucb")
    assert (policy["decisions"], policy["rewards"], policy["mean_reward"]) == (5, 4, 0.5)
    audited = forage("audit", folder=tmp_path)
    assert audited.returncode == 0
    head, line = (row.split() for row in audited.stdout.splitlines())
    assert (head[-1], line[-1]) == ("imported", "5")


@pytest.mark.process
def test_a_bad_line_ends_an_import_and_once_corrected_the_same_command_continues(
    running: Serving, tmp_path: Path
) -> None:
    good, path = lines_of(450), tmp_path / "log.jsonl"
    bad = good[300].replace("0.02", "2")
    path.write_text("\n".join([*good[:300], bad, *good[301:]]))
    ended = forage("import", "log.jsonl", *ARGUMENTS, running.url, folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[1].split() == ["linucb", "300", "0", "1"]
    said = "forage: log.jsonl:301: propensity must be less than or equal to 1\n"
    assert ended.stderr == said
    path.write_text("\n".join(good))
    ended = forage("import", "log.jsonl", *ARGUMENTS, running.url, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[1].split() == ["linucb", "150", "300", "0"]
    assert running.get("/policies/linucb")["rewards"] == 450


@pytest.mark.process
def test_bad_lines_are_skipped_and_named(running: Serving, tmp_path: Path) -> None:
    """One of each kind: no JSON, a wrong form, a wrong feature, and one that cannot be sent."""
    lines = lines_of(300)
    lines[3] = "{"
    lines[250] = lines[250].replace('"arm": 0', '"arm": true')
    lines[251] = lines[251].replace("cat_connoisseur", "dragon")
    lines[299] = lines[299].replace('"reward": 1', '"reward": NaN')
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    arguments = ["import", "log.jsonl", "--skip-bad", *ARGUMENTS]
    ended = forage(*arguments, running.url, folder=tmp_path)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1].split() == ["linucb", "296", "0", "4"]
    assert [line.split(" ")[1] for line in ended.stderr.splitlines()] == [
        "log.jsonl:4:",
        "log.jsonl:251:",
        "log.jsonl:252:",
        "log.jsonl:300:",
    ]
    assert "context.persona is not one of the known values" in ended.stderr


@pytest.mark.process
def test_what_is_wrong_with_all_of_it_is_said_in_one_line(running: Serving, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("\n".join(lines_of(1)))
    for arguments, said in [
        (
            ["log.jsonl", "--experiment", "zoo", "--policy", "linucb"],
            "there is no experiment 'zoo'",
        ),
        (
            ["log.jsonl", "--experiment", "zooplus", "--policy", "zoo"],
            "there is no policy 'zoo'; there are: ",
        ),
        (["no.jsonl", "--experiment", "zooplus", "--policy", "linucb"], "No such file"),
        (["log.txt", "--experiment", "zooplus", "--policy", "linucb"], "must end with .jsonl"),
    ]:
        ended = forage("import", *arguments, "--url", running.url, folder=tmp_path)
        assert said in expect_refusal(ended)


@pytest.mark.process
def test_the_same_visits_in_any_form_give_the_same_heads(running: Serving, tmp_path: Path) -> None:
    """More of them than one request and one commit hold; their numbers have all digits."""
    shop: dict[str, Any] = {
        "features": {"context": {"age": {"type": "numeric"}, "new": {"type": "boolean"}}},
        "policies": {
            "linucb": {"kind": "linucb"},
            "disjoint": {"kind": "linucb", "disjoint": True, "learns_from": "all"},
        },
        "arms": {"1": {}, "2": {}, "3": {}},
    }
    rng = Random(7)
    rows = [
        {
            "id": f"visit-{n}",
            "at": 1.7e9 + n,
            "context.age": rng.gauss(40, 12),
            "context.new": rng.random() < 0.5,
            "arms": json.dumps(["3", "1", "2"]) if n % 2 else None,
            "arm": f"{rng.randint(1, 3)}",
            "propensity": 1 / 3,
            "reward": rng.random(),
        }
        for n in range(600)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "log.csv").write_text(text.getvalue())
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "log.parquet")
    heads = dict[str, list[Any]]()
    for form in ("csv", "jsonl", "parquet"):
        httpx.put(f"{running.url}/experiments/{form}", json=shop).raise_for_status()
        arguments = [f"log.{form}", "--experiment", form, "--policy", "linucb"]
        ended = forage("import", *arguments, "--url", running.url, folder=tmp_path)
        assert ended.stdout.splitlines()[1].split() == ["linucb", "600", "0", "0"], ended.stderr
        found = httpx.get(f"{running.url}/experiments/{form}/policies").json()["policies"]
        heads[form] = [each["head"]["digest"] for each in found]
    assert heads["csv"] == heads["jsonl"] == heads["parquet"]


DRINKS: dict[str, Any] = {
    "features": {
        "context": {"weather": {"type": "categorical", "values": ["Sunny", "Rainy"]}},
        "arm": {"j.roast": {"type": "categorical", "values": ["dark", "light"]}},
    },
    "policies": {"linucb": {"kind": "linucb"}},
    "arms": {"Latte": {"j.roast": "dark"}},
}


@pytest.mark.process
def test_a_decision_service_log_is_imported(running: Serving, tmp_path: Path) -> None:
    """Costs become rewards, and the features that the experiment does not have are named."""
    httpx.put(f"{running.url}/experiments/coffee", json=DRINKS).raise_for_status()
    (tmp_path / "log.dsjson").write_text("\n".join([COFFEE, DANGLING]))
    arguments = ["import", "log.dsjson", "--experiment", "coffee", "--policy", "linucb"]
    ended = forage(*arguments, "--skip-bad", "--url", running.url, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[1].split() == ["linucb", "1", "0", "1"]
    refused, ignored = ended.stderr.splitlines()
    assert refused.startswith("forage: log.dsjson:2: an observation without its decision")
    assert ignored.endswith("not have: FromUrl.name, FromUrl.timeofday, i.constant, i.id, j.type")
    policy = httpx.get(f"{running.url}/experiments/coffee/policies/linucb").json()
    assert (policy["rewards"], policy["mean_reward"]) == (1, 1.0)


@pytest.mark.process
def test_a_raw_file_is_taken_with_its_columns_renamed(running: Serving, tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text(
        "id,at,shown,prob,persona,note\na,1714564800,4,0.5,cat_connoisseur,x\n"
    )
    arguments = ["import", "raw.csv", *ARGUMENTS, running.url]
    assert "--map shown=arm" in expect_refusal(forage(*arguments, folder=tmp_path))
    names = "shown=arm,prob=propensity,persona=context.persona,note="
    ended = forage(*arguments, "--map", names, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert forage(*arguments, "--map", "shown", folder=tmp_path).returncode == 2


# -- a service that is set lower, or away ----------------------------------------------------------


def importing(answer: object, *, skip_bad: bool = False) -> Importing:
    transport = httpx.MockTransport(answer)  # type: ignore[arg-type]
    client = httpx.Client(base_url="http://forage", transport=transport)
    return Importing(client, "zooplus", "linucb", skip_bad)


def test_a_service_that_takes_less_at_once_is_given_less() -> None:
    sizes = []

    def answer(request: httpx.Request) -> httpx.Response:
        visits = json.loads(request.content)["visits"]
        sizes.append(len(visits))
        if len(visits) > 4:
            return httpx.Response(413, json={"detail": "at most", "errors": []})
        if len(visits) > 2:
            fault = {"path": "visits", "message": "at most 2 visits"}
            return httpx.Response(422, json={"detail": "at most", "errors": [fault]})
        results = [{"status": 200, "answer": "imported"}] * len(visits)
        return httpx.Response(200, json={"results": results})

    work = importing(answer)
    work.take([(n, b'{"id":"%d"}' % n) for n in range(8)])
    assert not work.stopped
    assert (work.imported, sizes) == (8, [8, 4, 2, 2, 4, 2, 2])
    work = importing(lambda _: httpx.Response(413, json={"detail": "at most", "errors": []}))
    work.take([(7, b"{}"), (8, b"{}")])
    assert (work.stopped, work.refused) == (True, [(7, "is larger than the service takes")])


def test_a_visit_that_the_service_cannot_read_is_found_and_refused() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        visits = json.loads(request.content)["visits"]
        if any(visit["id"] == "5" for visit in visits):
            return httpx.Response(400, json={"detail": "nested too deeply", "errors": []})
        results = [{"status": 200, "answer": "imported"}] * len(visits)
        return httpx.Response(200, json={"results": results})

    work = importing(answer, skip_bad=True)
    work.take([(n, b'{"id":"%d"}' % n) for n in range(8)])
    assert work.imported == 7
    assert work.refused == [(5, "the service cannot read it: nested too deeply")]


def test_a_service_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_client, "WAIT_S", 0.0)
    answers: Iterator[httpx.Response | Exception] = iter(
        [
            httpx.ConnectError("refused"),
            httpx.Response(503, json={"detail": "try again", "errors": []}),
            httpx.Response(200, json={"results": [{"status": 200, "answer": "duplicate"}]}),
        ]
    )

    def answer(request: httpx.Request) -> httpx.Response:
        given = next(answers)
        if isinstance(given, Exception):
            raise given
        return given

    work = importing(answer)
    work.take([(1, b"{}")])
    assert not work.stopped
    assert work.duplicates == 1


def test_a_service_that_does_not_come_back_ends_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_client, "WAIT_S", 0.0)
    work = importing(lambda _: httpx.Response(503, json={"detail": "try again", "errors": []}))
    with pytest.raises(StoreUnavailable, match="try again; nothing is lost"):
        work.take([(1, b"{}")])


@pytest.mark.parametrize("status", [200, 404])
def test_what_is_no_forage_is_said(status: int) -> None:
    work = importing(lambda _: httpx.Response(status, html="<p>Hello"))
    with pytest.raises(ConfigurationError, match=f"answers {status}, not as a Forage service"):
        work.known()


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        "id;when;time;item;prob;persona\na;x;1714564800;4;0.5;cat_connoisseur\n",
        "id, at, arm, propensity, persona\na, 1714564800, 4, 0.5, cat_connoisseur\n",
        ',id,"time, UTC",it\'s item,p,persona\n0,a,1714564800,4,0.5,cat_connoisseur\n',
    ],
)
def test_each_hint_works_as_it_is_pasted(running: Serving, tmp_path: Path, text: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    command = ["import", "log.csv", *ARGUMENTS, running.url]
    for _ in range(2):
        ended = forage(*command, folder=tmp_path)
        if ended.returncode:
            hint = ended.stderr.partition(" with --")[2].partition(" (a visit has")[0]
            command += shlex.split(f"--{hint}")
    ended = forage(*command, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert running.get("/policies/linucb")["rewards"] == 0
    assert running.get("/policies/linucb")["decisions"] == 1
