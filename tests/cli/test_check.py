"""forage check: the line of each fault, what is expected, the nearest name; what is unwise."""

import json
from pathlib import Path

import pytest

from service.cli.program import main
from service.maintenance.checking import Checked, check

GOOD = """\
name = "shop"

[features]
crosses = ["persona x category"]

[features.context.persona]
type = "categorical"
values = ["cat", "dog"]

[features.arm]
category = { type = "categorical", values = ["food", "toy"] }

[arms]
kibble = { category = "food" }
ball = { category = "toy" }

[policies.main]
kind = "lints"

[reward]
default = 0.0
"""


def checked(text: str) -> Checked:
    return check(text, "shop.toml", "shop")


def changed(old: str, new: str) -> Checked:
    assert GOOD.count(old) == 1
    return checked(GOOD.replace(old, new))


def test_a_good_file_is_ok() -> None:
    found = checked(GOOD)
    assert found.findings == []
    assert found.text() == "shop.toml: ok: experiment 'shop', 2 arms, 1 policy"


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "said"),
    [
        ('name = "shop"', 'name = "a/b"', 1, "name", "letters, digits"),
        ('kind = "lints"', 'kind = "lint"', 18, "policies.main.kind", "did you mean 'lints'?"),
        ('kind = "lints"', 'kind = "zzz"', 18, "policies.main.kind", "there are: linucb, lints"),
        ('kind = "lints"', "share = 1", 17, "policies.main", "needs a 'kind'"),
        (
            'kind = "lints"',
            'kind = "lints"\nepsilom = 0.1',
            19,
            "policies.main.epsilom",
            "no such setting; did you mean 'epsilon'?",
        ),
        (
            "[policies.main]",
            "[policies]\nmain.training.frist = 1\nmain.kind = 'neural_ts'\n[policies.two]",
            18,
            "policies.main.training.frist",
            "did you mean 'first'?",
        ),
        ("[reward]", "[rewards]", 20, "rewards", "did you mean 'reward'?"),
        ("[reward]", "[reward]\naggregation = 'firts'", 21, "reward.aggregation", "mean 'first'?"),
        ("default = 0.0", "range = [0, 'x']", 21, "reward.range.1", "valid number"),
        ("default = 0.0", "default = 2.0", 20, "reward", "outside range"),
        ("[reward]", "[reward]\nrange = [1, 0]", 21, "reward.range", "below the upper"),
        ('"cat", "dog"]', '\n  "cat",\n  3,\n]', 10, "features.context.persona.values.1", "string"),
        ('x category"]', 'x categry"]', 4, "features.crosses.0", "did you mean 'category'?"),
        (
            'kind = "lints"',
            'kind = "lints"\nfeatures = ["persona", "prsona x category"]',
            19,
            "policies.main.features.1",
            "did you mean 'persona'?",
        ),
        ('{ category = "food" }', '{ category = "fod" }', 14, "arms.kibble.category", "known"),
        ('{ category = "food" }', "{ }", 14, "arms.kibble.category", ""),
        ('{ category = "food" }', '{ colour = "red" }', 14, "arms.kibble.colour", ""),
        ("[reward]", "max_vector = 1\n[reward]", 20, "policies.main.max_vector", "no such setting"),
    ],
)
def test_a_fault_has_its_line_its_setting_and_what_is_expected(
    old: str, new: str, line: int, path: str, said: str
) -> None:
    found = changed(old, new)
    told = [(each.line, each.path) for each in found.faults]
    assert (line, path) in told, found.text()
    [message] = [each.message for each in found.faults if each.path == path]
    assert said in message
    assert found.text().splitlines()[-1] == f"shop.toml: {len(told)} fault{'s' * (len(told) > 1)}"


def test_all_faults_are_told_in_the_order_of_the_file() -> None:
    found = checked(GOOD.replace("lints", "lint").replace("[reward]\n", "[reward]\nwait = 1\n"))
    assert [each.path for each in found.faults] == ["policies.main.kind", "reward.wait"]
    assert [each.line for each in found.faults] == [18, 21]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = [1\nc = 2\n", 3), ("a = 1\na = 2\n", 2), ("[x\n", 1), ("a = 'x", 1)],
)
def test_what_is_not_toml_is_told_with_its_line(text: str, line: int) -> None:
    [fault] = checked(text).findings
    assert (fault.line, fault.message[:10]) == (line, "not TOML: ")


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "said"),
    [
        ('kind = "lints"', 'kind = "linucb"', 17, "policies.main.epsilon", "off-policy"),
        (
            'kind = "lints"',
            'kind = "linucb"\nepsilon = 0.0',
            19,
            "policies.main.epsilon",
            "off-policy",
        ),
        ('kind = "lints"', 'kind = "lints"\nepsilon = 1', 19, "policies.main.epsilon", "uniform"),
        ("default = 0.0", 'default = "none"', 21, "reward.default", "only clicks are reported"),
        ("default = 0.0", "wait_seconds = 1", 21, "reward.wait_seconds", "corrections"),
        (
            "[reward]",
            "[policies.two]\nkind = 'lints'\nshare = 0\n[reward]",
            22,
            "policies.two.share",
            "no traffic",
        ),
        ('kind = "lints"', 'kind = "random"', 17, "policies", "no policy learns"),
        ('kind = "lints"', 'kind = "lints"\nlearning = false', 17, "policies", "no policy learns"),
        ('ball = { category = "toy" }\n', "", 13, "arms", "nothing to choose"),
        ('crosses = ["persona x category"]\n', "", 16, "policies.main", "without a cross"),
        (
            'kind = "lints"',
            'kind = "lints"\nfeatures = ["persona"]',
            19,
            "policies.main.features",
            "nothing of the arms",
        ),
        (
            "[arms]",
            'price = { type = "numeric", scale = 1, default = 1 }\n[arms]\n'
            'new = { category = "toy", price = 900 }',
            13,
            "features.arm.price",
            "center and scale",
        ),
    ],
)
def test_the_unwise_is_warned_of_and_no_fault(
    old: str, new: str, line: int, path: str, said: str
) -> None:
    found = changed(old, new)
    assert found.faults == []
    assert (line, path) in [(each.line, each.path) for each in found.findings], found.text()
    [message] = [each.message for each in found.findings if each.path == path]
    assert said in message
    assert "ok: experiment 'shop'" in found.text()


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["check", *arguments])
    output = capsys.readouterr()
    assert output.err == ""
    return status, output.out


def test_its_status_is_0_for_good_files_and_1_where_one_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, odd = (tmp_path / name for name in ("good.toml", "bad.toml", "odd.toml"))
    good.write_text(GOOD)
    bad.write_text(GOOD.replace("lints", "lint"))
    odd.write_text(GOOD.replace("lints", "linucb"))
    assert run(str(good), str(odd), capsys=capsys)[0] == 0
    assert run("--strict", str(good), str(odd), capsys=capsys)[0] == 1
    status, told = run(str(good), str(bad), capsys=capsys)
    assert status == 1
    assert f"{bad}:18: fault: policies.main.kind: " in told


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD.replace("lints", "lint"))
    status, told = run("--json", str(path), capsys=capsys)
    [found] = json.loads(told)["files"]
    assert (status, found["ok"], found["file"]) == (1, False, str(path))
    [fault] = found["findings"]
    assert (fault["level"], fault["line"], fault["path"]) == ("fault", 18, "policies.main.kind")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"name = '\xe9'"])
def test_what_cannot_be_read_is_said(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.toml"
    if content is not None:
        path.write_bytes(content)
    status, told = run(str(path), capsys=capsys)
    assert status == 1
    assert ("not UTF-8" if content else "No such file") in told


@pytest.mark.parametrize(
    ("setting", "times"),
    [("scale = 2.0", 0), ("clip = 3.0", 0), ("center = 1.0", 1), ("min = 0.0", 1)],
)
def test_a_number_of_no_declared_size_is_unwise(setting: str, times: int) -> None:
    found = changed(
        'type = "categorical"\nvalues = ["cat", "dog"]', f'type = "numeric"\n{setting}'
    ).findings
    assert [each.path for each in found] == ["features.context.persona"] * times
    assert all("its usual size is not declared" in each.message for each in found)
