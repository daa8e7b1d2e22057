"""A name stands for settings; a file adds to the names or replaces them."""

from pathlib import Path

import pytest

from simulator_client.errors import UsageError
from simulator_client.worlds.policies import chosen, named, read_policies
from simulator_client.worlds.zooplus import Zooplus


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("linucb", {"kind": "linucb"}),
        ("lints_disjoint_narrow", {"kind": "lints", "disjoint": True, "scale": 0.1}),
        ("neural_ucb_full", {"kind": "neural_ucb", "form": "full"}),
        ("bootstrap_ensemble_ucb", {"kind": "bootstrap_ensemble", "rule": "ucb"}),
        ("epsilon_greedy_popularity", {"kind": "epsilon_greedy", "regressor": "popularity"}),
        ("squarecb_disjoint", {"kind": "squarecb", "disjoint": True}),
        ("linucb_change", {"kind": "linucb", "change": True}),
        ("lints_forgetting", {"kind": "lints", "gamma": 0.9995}),
        (
            "neural_ts_diagonal_window_change",
            {"kind": "neural_ts", "form": "diagonal", "window": 2000, "change": True},
        ),
    ],
)
def test_a_name_stands_for_settings(name: str, settings: dict[str, object]) -> None:
    assert named(name) == settings


@pytest.mark.parametrize(
    "name",
    ["", "bogus", "linucb_", "linucb_narrow", "linucbx", "neural_ucb_full_diagonal", "_change",
     "linucb_change_disjoint", "linucb_change_change", "random_window", "static_change"],
)  # fmt: skip
def test_other_names_are_refused_with_what_is_known(name: str) -> None:
    assert named(name) is None
    with pytest.raises(
        UsageError, match=r"known: auto, linucb\[_disjoint\], .*_change, _forgetting"
    ):
        chosen([name], None, lambda settings: {})


def test_in_the_shop_disjoint_heads_see_the_persona() -> None:
    told = Zooplus(42).definition(["linucb_disjoint", "linucb"])["policies"]
    assert told == {
        "linucb_disjoint": {"kind": "linucb", "disjoint": True, "features": ["persona"]},
        "linucb": {"kind": "linucb"},
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("p.json", '{"mine": {"kind": "linucb", "alpha": 0.5}}'),
     ("p.toml", '[mine]\nkind = "linucb"\nalpha = 0.5\n'),
     ("p.json", '{"arms": {}, "policies": {"mine": {"kind": "linucb", "alpha": 0.5}}}'),
     ("p.toml", 'max_vector = 3\n[policies.mine]\nkind = "linucb"\nalpha = 0.5\n')],
)  # fmt: skip
def test_a_policy_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert read_policies(tmp_path / name) == {"mine": {"kind": "linucb", "alpha": 0.5}}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", "{", "is not JSON"),
        ("p.toml", "=", "is not TOML"),
        ("p.toml", "mine = " + "[" * 100_000, "is not TOML"),
        ("p.json", '{"mine": {"kind": "linucb", "kind": "lints"}}', "'kind' is given twice"),
        ("p.json", "{}", "holds no policies"),
        ("p.json", "[1]", "holds no policies"),
        ("p.json", '{"mine": {"alpha": 1}}', "policy 'mine' has no kind"),
        ("p.json", None, "No such file"),
    ],
)
def test_a_policy_file_that_is_none_is_said(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_policies(tmp_path / name)
