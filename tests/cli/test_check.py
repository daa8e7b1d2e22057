"""forage check: the path of each fault, the expected value, the nearest name; what is unwise."""

import json
from pathlib import Path

import pytest

from service.cli.program import main
from service.offline.checking import Checked, check
from tests.cli.forage import forage, serving

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


KIND = 'kind = "lints"\n'


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
    ("old", "new", "path", "said"),
    [
        ('name = "shop"', 'name = "a/b"', "name", "letters, digits"),
        ('kind = "lints"', 'kind = "lint"', "policies.main.kind", "did you mean 'lints'?"),
        (
            'kind = "lints"',
            'kind = "zzz"',
            "policies.main.kind",
            "there are: 'auto', 'linucb'",
        ),
        ('kind = "lints"', "share = 1", "policies.main.kind", "is required"),
        ('kind = "lints"', f"{KIND}epsilom = 0.1", "policies.main.epsilom", "mean 'epsilon'?"),
        (
            "[policies.main]",
            "[policies]\nmain.training.frist = 1\nmain.kind = 'neural_ts'\n[policies.two]",
            "policies.main.training.frist",
            "did you mean 'first'?",
        ),
        ("[reward]", "[rewards]", "rewards", "did you mean 'reward'?"),
        ("[reward]", "[reward]\naggregation = 'firts'", "reward.aggregation", "mean 'first'?"),
        ("default = 0.0", "range = [0, 'x']", "reward.range.1", "must be a number"),
        ("default = 0.0", "default = 2.0", "reward.default", "outside range"),
        ("[reward]", "[reward]\nrange = [1, 0]", "reward.range", "below the upper"),
        ('"cat", "dog"]', '\n  "cat",\n  3,\n]', "features.context.persona.values.1", "string"),
        ('x category"]', 'x categry"]', "features.crosses.0", "did you mean 'category'?"),
        ('{ category = "food" }', '{ category = "fod" }', "arms.kibble.category", "known"),
        ("[reward]", "max_vector = 1\n[reward]", "policies.main.max_vector", "is unknown"),
    ],
)
def test_a_fault_names_its_path_and_the_expected_value(
    old: str, new: str, path: str, said: str
) -> None:
    found = changed(old, new)
    [message] = [each.message for each in found.faults if each.path == path]
    assert said in message
    count = len(found.faults)
    assert found.text().splitlines()[-1] == f"shop.toml: {count} fault{'s' * (count > 1)}"


def test_all_faults_of_the_rewards_are_named() -> None:
    """Those of single settings hide none between the others."""
    rules = """
range = [1, 0]
aggregation = "sums"
wait_seconds = -1
accept_seconds = "long"
total = [0.2, 0.4]
examination = [2]
wait = 1
"""
    found = checked(GOOD.replace("default = 0.0", rules))
    settings = "accept_seconds aggregation examination range wait wait_seconds"
    assert {each.path for each in found.faults} == {f"reward.{name}" for name in settings.split()}
    between = 'range = [0, 1]\ntotal = [0.2, 0.4]\ndefault = 2\naggregation = "first"\nwait = 1'
    found = checked(GOOD.replace("default = 0.0", between))
    paths = ["reward.default", "reward.total", "reward.wait"]
    assert sorted({each.path for each in found.faults}) == paths
    assert len(found.faults) == 3


def test_all_faults_are_named() -> None:
    found = checked(GOOD.replace("lints", "lint").replace("[reward]\n", "[reward]\nwait = 1\n"))
    assert {each.path for each in found.faults} == {"policies.main.kind", "reward.wait"}


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = [1\nc = 2\n", 3), ("a = 1\na = 2\n", 2), ("[x\n", 1), ("a = 'x", 1)],
)
def test_a_file_that_is_not_toml_is_named_with_the_line(text: str, line: int) -> None:
    [fault] = checked(text).findings
    assert fault.message.startswith("not TOML: ")
    assert f"line {line}" in fault.message or "end of document" in fault.message


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ('kind = "lints"', 'kind = "linucb"', "policies.main.epsilon", "off-policy"),
        ('kind = "lints"', 'kind = "lints"\nepsilon = 1', "policies.main.epsilon", "uniform"),
        ("default = 0.0", 'default = "none"', "reward.default", "only clicks are reported"),
        ("default = 0.0", "wait_seconds = 1", "reward.wait_seconds", "corrections"),
        ("[reward]", f"[policies.two]\n{KIND}share = 0\n[reward]", "policies.two.share", "traffic"),
        ('name = "shop"', 'name = "shop"\nfallback = "main"', "fallback", "it sees features"),
        ('kind = "lints"', 'kind = "random"', "policies", "no policy learns"),
        ('kind = "lints"', 'kind = "lints"\nlearning = false', "policies", "no policy learns"),
        ('ball = { category = "toy" }\n', "", "arms", "nothing to choose"),
        ('crosses = ["persona x category"]\n', "", "policies.main", "without a cross"),
        (
            'kind = "lints"',
            'kind = "lints"\nfeatures = ["age", "age x category"]\n'
            "[features.context.age]\ntype = 'numeric'\nscale = 10",
            "policies.main.features",
            "without 'intercept'",
        ),
        (
            'kind = "lints"',
            f'{KIND}features = ["persona"]',
            "policies.main.features",
            "of the arms",
        ),
        (
            'kind = "lints"',
            'kind = "neural_ucb"\nepsilon = 0.1\nform = "full"\n'
            "[features.context.age]\ntype = 'numeric'\nscale = 10",
            "policies.main.form",
            "the first 2,048 distinct rows, and any number may come",
        ),
        (
            "[arms]",
            'price = { type = "numeric", scale = 1, default = 1 }\n[arms]\n'
            'new = { category = "toy", price = 900 }',
            "features.arm.price",
            "center and scale",
        ),
    ],
)
def test_an_unwise_setting_is_a_warning_and_no_fault(
    old: str, new: str, path: str, said: str
) -> None:
    found = changed(old, new)
    assert found.faults == []
    [message] = [each.message for each in found.findings if each.path == path]
    assert said in message
    assert "ok: experiment 'shop'" in found.text()


def test_a_fallback_needs_no_share() -> None:
    popular = '[policies.popular]\nkind = "popularity"\nshare = 0\nlearns_from = "all"\n[reward]'
    text = GOOD.replace("[reward]", popular).replace(
        "[features]", 'fallback = "popular"\n[features]'
    )
    assert checked(text).findings == []


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"age": ""}, None),
        ({"age": ", clip = 5"}, None),
        ({"age": ", scale = 10, min = 0, max = 99"}, None),
        ({"age": ", center = 40", "day": "", "visits": ", scale = 10"}, "'age', 'visits'"),
        ({"age": ", scale = 10, min = 0"}, "'age'"),
    ],
)
def test_numbers_of_the_context_that_declare_a_scale_are_named_in_one_warning(
    numbers: dict[str, str], named: str | None
) -> None:
    lines = "".join(f'{name} = {{ type = "numeric"{rest} }}\n' for name, rest in numbers.items())
    found = changed("[features.arm]\n", f"[features.context]\n{lines}\n[features.arm]\n")
    messages = [each.message for each in found.findings if "declared" in each.message]
    assert found.faults == []
    assert [message.partition(": ")[0] for message in messages] == (
        [] if named is None else [f"center or scale is declared of {named}"]
    )


@pytest.mark.parametrize(
    ("rule", "path", "said"),
    [
        ("eligible_if = \"persona == 'fish'\"", "eligible_if", "'persona' is never 'fish'; there"),
        ("eligible_if = \"'dogs' != persona\"", "eligible_if", "'dogs'; did you mean 'dog'?"),
        (
            "eligible_if = \"not (sale or category in ['toy', 'bed'])\"",
            "eligible_if",
            "'category' is never 'bed'; there are: 'food', 'toy'",
        ),
        (
            "cap = { of = 'arm', share = 0.6, if = \"persona in ['', 'cat']\" }",
            "cap.if",
            "never ''",
        ),
        ("cap = { of = 'category', is = 'foot', share = 0.6 }", "cap.is", "you mean 'food'?"),
        ("of = 'category'\nis = 'bed'\neligible_if = 'sale'", "is", "never 'bed'"),
        ("eligible_if = \"persona in ['cat', 'dog'] and category != 'toy'\"", None, ""),
        ("eligible_if = \"brand == 'Acme' and city == 'Linz'\"", None, ""),
        ("cap = { of = 'brand', is = 'Acme', share = 0.6 }", None, ""),
        ("cap = { of = 'arm', share = 0.6 }", None, ""),
    ],
)
def test_a_value_of_a_rule_that_no_category_has_is_a_warning(
    rule: str, path: str | None, said: str
) -> None:
    """A category that takes others, and an attribute, may have any value."""
    found = changed(
        "[features.arm]\n",
        "[features.context.city]\ntype = 'categorical'\nvalues = ['Wien']\nunknown = 'other'\n"
        f"[attributes]\nbrand = 'text'\nsale = 'boolean'\n[rules.r]\n{rule}\n[features.arm]\n",
    )
    assert found.faults == []
    messages = {each.path: each.message for each in found.findings}
    assert messages.keys() == (set() if path is None else {f"rules.r.{path}"})
    assert all(said in message for message in messages.values())


def test_a_value_of_a_segment_that_no_category_has_is_a_warning() -> None:
    table = "[rollout.guardrails.segments.where]\nfish = \"persona == 'fish'\"\n"
    found = changed("[features.arm]\n", f"{table}[features.arm]\n")
    assert found.faults == []
    messages = {each.path: each.message for each in found.findings}
    said = messages["rollout.guardrails.segments.where.fish"]
    assert said.startswith("'persona' is never 'fish'; there are: ")


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
    status, printed = run(str(good), str(bad), capsys=capsys)
    assert status == 1
    assert f"{bad}: fault: policies.main.kind: " in printed
    found = json.loads(run("--json", str(bad), capsys=capsys)[1])["files"][0]
    assert (found["ok"], found["file"]) == (False, str(bad))
    assert [(each["level"], each["path"]) for each in found["findings"]] == [
        ("fault", "policies.main.kind")
    ]
    bad.write_bytes(b"name = '\xe9'")
    assert "not UTF-8" in run(str(bad), capsys=capsys)[1]
    assert "No such file" in run("nowhere.toml", capsys=capsys)[1]


def test_a_number_or_a_list_that_no_reader_takes_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.toml"
    for content in (f"max_vector = {'9' * 5_001}", f"arms = {'[' * 100_000}"):
        path.write_text(content)
        status, told = run(str(path), capsys=capsys)
        assert (status, "not TOML: " in told) == (1, True)
    path.write_text(f"[{'.'.join(['a'] * 3_000)}]\nb = 1")
    status, told = run(str(path), capsys=capsys)
    assert (status, "is unknown" in told) == (1, True)


@pytest.mark.process
def test_a_service_says_which_policies_would_start_anew(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(GOOD)
    with serving(tmp_path, "--experiment", str(file)) as running:
        same = forage("check", "shop.toml", "--url", running.url, folder=tmp_path)
        assert (same.returncode, "starts from the prior" in same.stdout) == (0, False)
        file.write_text(GOOD.replace('kind = "lints"', 'kind = "linucb"'))
        told = forage("check", "shop.toml", "--url", running.url, folder=tmp_path)
        expected = (
            "shop.toml: warning: policies.main: starts from the prior: it learned with another"
        )
        assert expected in told.stdout
        file.write_text(f"[policies.main]\n{KIND}")
        told = forage("check", "shop.toml", "--url", running.url, folder=tmp_path)
        assert "shop.toml: warning: arms: 2 go: 'kibble', 'ball'" in told.stdout
        assert (
            "warning: features: 3 go: 'context.persona', 'arm.category', 'crosses." in told.stdout
        )
        assert running.get("/experiments/shop")["revision"] == 1
    gone = forage("check", "shop.toml", "--url", running.url, folder=tmp_path)
    assert gone.returncode == 1
    assert "does not answer as Forage" in gone.stderr


def test_an_unknown_kind_hides_no_other_fault() -> None:
    """It is read as the nearest one, whatever its case."""
    text = GOOD.replace('kind = "lints"', 'kind = "linUCB"\nalfa = 1.0\nridge = -1.0')
    faults = {each.path: each.message for each in checked(text).faults}
    assert faults["policies.main.kind"].endswith("did you mean 'linucb'?")
    assert faults["policies.main.alfa"] == "is unknown; did you mean 'alpha'?"
    assert "policies.main.ridge" in faults


def test_mistakes_between_settings_are_all_named(tmp_path: Path) -> None:
    """Of two policies that saw unknown features the first alone was, and no control beside it."""
    text = (
        'control = "c"\n[features.context.pet]\ntype = "categorical"\nvalues = ["cat"]\n'
        '[policies.a]\nkind = "linucb"\nfeatures = ["pett"]\n'
        '[policies.b]\nkind = "linucb"\nfeatures = ["pet", "size"]\n'
    )
    found = {each.path: each.message for each in check(text, "shop.toml", "shop").findings}
    assert found.keys() == {"policies.a.features.0", "policies.b.features.1", "control"}
    assert found["policies.a.features.0"].endswith("did you mean 'pet'?")
