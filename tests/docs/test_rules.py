"""The examples of docs/rules.md are valid files, and decisions by them are what the page says."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from service.definition.experiment import Definition
from service.definition.files import toml_of
from service.definition.rules import RULES
from service.features.expression import EXPRESSION_CHARACTERS, parse
from service.manage.admin import Admin
from service.offline.checking import check
from tests.docs.page import DOCS, blocks
from tests.support.service import Json, Wire, expect_problem, serving

PAGE = DOCS / "rules.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = [*blocks(PAGE)]
FILES = {
    toml_of(block.text)["name"]: (block.text, json.loads(said.text))
    for block, said in pairwise(BLOCKS)
    if block.language == "toml" and block.text.startswith("name")
}
"""File of each example, and what GET /decisions/{id} says."""

DAY_S = 86_400.0


@contextmanager
def opened(name: str, tmp_path: Path) -> Iterator[Wire]:
    file = tmp_path / f"{name}.toml"
    file.write_text(FILES[name][0], encoding="utf-8")
    with serving(experiments=[file]) as wire:
        yield wire


def decide(wire: Wire, **question: object) -> Json:
    return wire.select(context={}, **question)


def chances(wire: Wire, decision: Json) -> dict[str, float]:
    return {each["arm"]: each["probability"] for each in wire.explain(decision)["candidates"]}


def report(wire: Wire, arm: str, reward: float, times: int = 60) -> None:
    """Show an arm alone, so often, and report what came of it."""
    for _ in range(times):
        wire.reward(decide(wire, arms=[arm]), reward)


def told(wire: Wire, decision: Json) -> Json:
    explained = wire.explain(decision)
    for name in ("rules", "relaxed"):
        assert decision[name] == explained[name]
    return {name: explained[name] for name in ("rules", "relaxed", "said")}


# -- what each example promises --------------------------------------------------------------------


def out_of_stock(wire: Wire) -> Json:
    decision = decide(wire)
    assert chances(wire, decision).keys() == {"ball", "kibble"}
    said = told(wire, decision)
    wire.request("PATCH", "/arms/rope", json={"attributes": {"stock": 5}})
    assert chances(wire, decide(wire)).keys() == {"ball", "rope", "kibble"}
    wire.request("PATCH", "/arms/ball", json={"attributes": {"stock": None}})
    assert chances(wire, decide(wire)).keys() == {"rope", "kibble"}
    return said


def sponsored(wire: Wire) -> Json:
    decision = decide(wire)
    report(wire, "ball", 1.0)
    for each in (decision, decide(wire)):
        assert chances(wire, each)["ball"] == pytest.approx(0.1, abs=1e-6)
    return told(wire, decision)


def varied(wire: Wire) -> Json:
    assert told(wire, decide(wire)) == {"rules": [], "relaxed": [], "said": []}
    wire.pass_by(DAY_S)
    shown = Counter[str]()
    for number in range(300):
        decision = decide(wire)
        wire.reward(decision, float(decision["arm"] == "ball"))
        shown[decision["arm"]] += 1
        assert number < 100 or max(shown.values()) <= 0.306 * shown.total()
        if decision["rules"]:
            held = decision
    assert shown["ball"] > 0.28 * 300
    return told(wire, held)


def fresh(wire: Wire) -> Json:
    wire.pass_by(15 * DAY_S)
    wire.put("/arms/late", {"features": {}})
    for arm in ("ball", "rope", "kibble", "late"):
        report(wire, arm, float(arm != "late"))
    decision = decide(wire)
    assert chances(wire, decision)["late"] == pytest.approx(0.08, abs=1e-6)
    wire.pass_by(15 * DAY_S)
    assert chances(wire, decide(wire))["late"] < 0.01
    return told(wire, decision)


def mixed(wire: Wire) -> Json:
    for arm in ("ball", "rope", "bone", "kibble"):
        report(wire, arm, float(arm != "kibble"))
    rankings = [decide(wire, top_k=3) for _ in range(20)]
    for decision in rankings:
        arms = [each["arm"] for each in decision["ranking"]]
        assert "kibble" in arms
        if arms[2] == "kibble":
            found = decision
    return told(wire, found)


PROMISES: dict[str, Callable[[Wire], Json]] = {
    "stock": out_of_stock,
    "sponsored": sponsored,
    "varied": varied,
    "fresh": fresh,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", PROMISES)
def test_an_example_decides_as_the_page_says(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as wire:
        assert PROMISES[name](wire) == FILES[name][1]


def test_each_example_is_a_file_without_a_fault_or_a_warning() -> None:
    assert FILES.keys() == PROMISES.keys()
    for name, (text, _) in FILES.items():
        assert check(text, f"{name}.toml", name).findings == []
        content = toml_of(text)
        del content["name"]
        Admin.check(Definition.model_validate(content).completed())


# -- the rest of the page --------------------------------------------------------------------------


def test_the_refusal_is_the_one_on_the_page(tmp_path: Path) -> None:
    [block] = [each for each in BLOCKS if "no-eligible-arm" in each.text]
    with opened("stock", tmp_path) as wire:
        for arm in ("ball", "kibble"):
            wire.request("PATCH", f"/arms/{arm}", json={"attributes": {"stock": 0}})
        asked = {"context": {}, "arms": ["ball", "kibble"]}
        assert expect_problem(wire.post("/select", asked), 409) == json.loads(block.text)


@pytest.mark.parametrize(
    "condition",
    [
        "stock > 0 and country in ['DE', 'AT']", "5 <= price < 20", "brand not in ['Acme']",
        "sale", "not sale", "stock > 0 or sale", "not (stock > 0)", "country == 'DE'",
    ],
)  # fmt: skip
def test_a_condition_on_the_page_can_be_written(condition: str) -> None:
    assert condition in TEXT
    parse(
        condition,
        {
            "stock": "number", "price": "number", "country": "text", "brand": "text",
            "sale": "boolean",
        },
    )  # fmt: skip


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"at most {EXPRESSION_CHARACTERS:,} characters" in TEXT
    assert f"at most {RULES} rules" in TEXT
