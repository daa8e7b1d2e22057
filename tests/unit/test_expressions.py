"""Conditions of rules: what they mean, also where values are missing, and what is refused."""

import ast
import operator
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.features.expression import (
    EXPRESSION_CHARACTERS,
    EXPRESSION_DEPTH,
    EXPRESSION_TERMS,
    Column,
    Truth,
    Values,
    ValueType,
    column_of,
    parse,
)

TYPES: dict[str, ValueType] = {
    "stock": "number",
    "price": "number",
    "country": "text",
    "brand": "text",
    "sale": "boolean",
    "new": "boolean",
}
UNREADABLE: dict[str, ValueType] = {
    "page.type": "text",
    "page-type": "text",
    "24-h": "text",
    "class": "text",
    "größe": "number",
}
PLACE = re.compile(r"(line \d+, )?column [1-9]\d*: .")
NUMBERS, TEXTS = [-1.5, 0.0, 2.0, 1e6], ["DE", "AT", "é'\\\"", ""]
CONSTANTS: dict[ValueType, list[Any]] = {
    "number": NUMBERS,
    "text": TEXTS,
    "boolean": [True, False],
}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EITHER = list(COMPARISONS)[:2]

Row = dict[str, Any]
Kleene = bool | None


@dataclass(frozen=True)
class Meant:
    """A condition: its text, how tightly it binds, and its meaning, written without the service.

    binds   0: or, 1: and, 2: not, 3: a comparison
    """

    text: str
    binds: int
    of: Callable[[Row], Kleene]

    def inside(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


def negation(part: Kleene) -> Kleene:
    return None if part is None else not part


def conjunction(parts: list[Kleene]) -> Kleene:
    return False if False in parts else None if None in parts else True


def disjunction(parts: list[Kleene]) -> Kleene:
    return negation(conjunction([negation(part) for part in parts]))


@dataclass(frozen=True)
class Term:
    text: str
    of: Callable[[Row], Any]


def constant(value: Any) -> Term:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return Term(f"'{escaped}'", lambda row: value)
    return Term(repr(value), lambda row: value)


def named(name: str) -> Term:
    return Term(name, lambda row: row.get(name))


def terms(kind: ValueType) -> st.SearchStrategy[Term]:
    names = [name for name, of in TYPES.items() if of == kind]
    return st.sampled_from(names).map(named) | st.sampled_from(CONSTANTS[kind]).map(constant)


@st.composite
def comparisons(draw: st.DrawFn) -> Meant:
    kind = draw(st.sampled_from(list(CONSTANTS)))
    sides = draw(st.lists(terms(kind), min_size=2, max_size=3))
    allowed = list(COMPARISONS) if kind == "number" else EITHER
    signs = [draw(st.sampled_from(allowed)) for _ in sides[1:]]

    def of(row: Row) -> Kleene:
        pairs = pairwise([side.of(row) for side in sides])
        return conjunction(
            [
                None if None in pair else COMPARISONS[sign](*pair)
                for sign, pair in zip(signs, pairs, strict=True)
            ]
        )

    rest = [f"{sign} {side.text}" for sign, side in zip(signs, sides[1:], strict=True)]
    return Meant(" ".join([sides[0].text, *rest]), 3, of)


@st.composite
def memberships(draw: st.DrawFn) -> Meant:
    kind = draw(st.sampled_from(list(CONSTANTS)))
    side = draw(terms(kind))
    options = draw(st.lists(st.sampled_from(CONSTANTS[kind]), min_size=1))
    inside = draw(st.booleans())

    def of(row: Row) -> Kleene:
        value = side.of(row)
        return None if value is None else (value in options) is inside

    sign = "in" if inside else draw(st.sampled_from(["not in", "not  \n in"]))
    inner = ", ".join(constant(option).text for option in options)
    shown = draw(st.sampled_from([f"[{inner}]", f"({inner},)"]))
    return Meant(f"{side.text} {sign} {shown}", 3, of)


def flag(term: Term) -> Meant:
    return Meant(term.text, 3, term.of)


def denied(part: Meant) -> Meant:
    return Meant(f"not {part.inside(2)}", 2, lambda row: negation(part.of(row)))


def joined(parts: list[Meant], word: str) -> Meant:
    binds, combine = (1, conjunction) if word == "and" else (0, disjunction)
    text = f" {word} ".join(part.inside(binds + 1) for part in parts)
    return Meant(text, binds, lambda row: combine([part.of(row) for part in parts]))


def larger(part: st.SearchStrategy[Meant]) -> st.SearchStrategy[Meant]:
    parts = st.lists(part, min_size=2, max_size=3)
    return part.map(denied) | st.builds(joined, parts, st.sampled_from(["and", "or"]))


SIMPLE = comparisons() | memberships() | terms("boolean").map(flag)
CONDITIONS = SIMPLE | st.recursive(SIMPLE, larger, max_leaves=8).filter(
    lambda meant: len(meant.text) <= EXPRESSION_CHARACTERS
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {name: st.none() | st.sampled_from(CONSTANTS[kind]) for name, kind in TYPES.items()}
    ),
    min_size=4,
    max_size=6,
)


def kleene(true: bool, known: bool) -> Kleene:
    assert known or not true
    return true if known else None


def told(truth: Truth, rows: int) -> list[Kleene]:
    true, known = (np.broadcast_to(part, rows).tolist() for part in truth)
    return [kleene(*pair) for pair in zip(true, known, strict=True)]


@given(CONDITIONS, ROWS, st.sets(st.sampled_from(list(TYPES))))
def test_a_condition_means_the_same_one_by_one_and_for_all_arms(
    meant: Meant, rows: list[Row], of_arms: set[str]
) -> None:
    rows = [row | {name: rows[0][name] for name in TYPES.keys() - of_arms} for row in rows]
    expected = [meant.of(row) for row in rows]
    expression = parse(meant.text, TYPES)
    assert [kleene(*expression.evaluate(row)) for row in rows] == expected
    columns = {name: column_of([row[name] for row in rows], TYPES[name]) for name in of_arms}
    truth = expression.evaluate(rows[0] | columns)
    assert told(truth, len(rows)) == expected
    shape = (len(rows),) if of_arms & expression.names else ()
    assert np.shape(truth.true) == np.shape(truth.known) == shape


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("stock > 0 or sale", True),  # the stock is missing, the sale is on
        ("stock > 0 and sale", None),
        ("stock > 0 and not sale", False),
        ("not stock > 0", None),
        ("stock > 0 or not stock > 0", None),
        ("0 < price <= 10", True),
        ("0 < price < 10", False),
        ("10 < price <= 10", False),
        ("0 < stock < price > 10", False),
        ("0 < stock < price", None),
        ("price == 10 and country == 'DE' or price > 10", True),
        ("not sale or sale", True),
        ("not (sale or sale)", False),
        ("country in ['DE', 'AT'] and country not in ('FR',)", True),
        ("country == brand", False),
        ("country == 'D\\\\E'", False),
        ('"DE" == country', True),
        ("sale == true and new != True", True),
        ("1 < 2", True),
        ("-1e2 < -.5 < 0. <1", True),
        ("false or False", False),
        ("  sale\n  and\tprice > 0\r\n  ", True),
    ],
)
def test_what_a_condition_means(text: str, holds: Kleene) -> None:
    values: Row = {"price": 10.0, "country": "DE", "brand": "X", "sale": True, "new": False}
    assert kleene(*parse(text, TYPES).evaluate(values)) is holds


@pytest.mark.parametrize("kind", list(CONSTANTS))
@pytest.mark.parametrize(
    "value", [None, float("nan"), float("inf"), 10**400, [], b"DE", Ellipsis, 0, "DE", True]
)
def test_what_is_no_value_of_the_type_is_missing(kind: ValueType, value: Any) -> None:
    there = {"number": value == 0, "text": value == "DE", "boolean": value is True}[kind]
    expression = parse("x == x", {"x": kind})
    assert expression.evaluate({"x": value}) == (there, there)
    column = expression.evaluate({"x": column_of([value], kind)})
    assert told(column, 1) == [True if there else None]


def test_a_missing_name_is_unknown_beside_a_column() -> None:
    expression = parse("country == brand", TYPES)
    truth = expression.evaluate({"country": column_of(["", "DE"], "text")})
    assert told(truth, 2) == [None, None]


def test_what_a_column_has_in_place_of_a_missing_value_does_not_count() -> None:
    known = np.array([True, False, False])
    values: dict[str, Values] = {
        "sale": Column(np.array([True, True, False]), known),
        "stock": Column(np.array([1.0, 1.0, np.inf]), known),
        "country": Column(np.array(["DE", "DE", "AT"], object), known),
    }
    for text in ("sale", "stock == 1", "stock in [1]", "country == 'DE'", "country in ['DE']"):
        assert told(parse(text, TYPES).evaluate(values), 3) == [True, None, None]
        assert told(parse(f"not ({text})", TYPES).evaluate(values), 3) == [False, None, None]


@pytest.mark.parametrize("context", ["DE", "DE\0", "D"])
def test_texts_are_equal_to_their_last_character(context: str) -> None:
    arms = ["DE", "DE\0", "D\0E", "de"]
    values: dict[str, Values] = {"brand": context, "country": column_of(arms, "text")}
    for text in ("country == brand", "brand == country"):
        assert told(parse(text, TYPES).evaluate(values), 4) == [arm == context for arm in arms]


def test_large_integers_compare_alike_in_scalars_and_columns() -> None:
    expression = parse("stock == 9007199254740992", TYPES)
    assert expression.evaluate({"stock": 2**53 + 1}).true
    assert told(expression.evaluate({"stock": column_of([2**53 + 1], "number")}), 1) == [True]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("number", np.float64), ("text", np.object_), ("boolean", np.bool_)]
)
def test_a_column_may_be_empty(kind: ValueType, dtype: type) -> None:
    column = column_of([], kind)
    assert isinstance(column, Column)
    assert column.values.dtype == dtype
    assert column.values.shape == column.known.shape == (0,)
    text = f"x == x and x in [{constant(CONSTANTS[kind][0]).text}]"
    assert np.shape(parse(text, {"x": kind}).evaluate({"x": column}).true) == (0,)


def test_names_are_those_that_the_condition_reads() -> None:
    expression = parse("stock > 0 and not sale or stock < price and true", TYPES)
    assert expression.names == {"stock", "sale", "price"}
    assert expression.text == "stock > 0 and not sale or stock < price and true"
    assert parse("1 < 2", TYPES).names == set()


def test_a_condition_knows_the_texts_that_its_names_are_compared_with() -> None:
    text = "country in ['DE', 'AT'] and not ('Acme' == brand or brand != 'Acme') and 'a' != 'b'"
    expected = (("country", "DE"), ("country", "AT"), ("brand", "Acme"))
    assert parse(text, TYPES).texts == expected
    assert parse("'DE' == country == brand and stock > 3", TYPES).texts == (("country", "DE"),)


def test_names_may_be_words_that_are_free_elsewhere() -> None:
    types: dict[str, ValueType] = {
        **dict.fromkeys(("match", "type", "nothing", "in", "or-not", "inner"), "number"),
        **dict.fromkeys(("true", "1e5"), "text"),
    }
    expression = parse("true == 'a' and match < type or nothing in [1e5] and inner > 0", types)
    assert expression.names == {"true", "match", "type", "nothing", "inner"}
    assert parse("True or false", types).evaluate({}) == (True, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: the condition is empty"),
        (" \n ", "line 1, column 1: the condition is empty"),
        ("stok > 0", "column 1: there is no feature or attribute 'stok'; did you mean 'stock'?"),
        (
            "sale and xyz > 0",
            "column 10: there is no feature or attribute 'xyz'; there are: 'stock'",
        ),
        ("sale\nand  stok > 0", "line 2, column 6: there is no feature or attribute 'stok'"),
        ("'éé' == country or stok > 0", "column 20: there is no feature or attribute 'stok'"),
        ("'éé' == country and stock", "column 21: 'stock' is a number, no condition"),
        ("'𝄞' != country or\r\n stock", "line 2, column 2: 'stock' is a number, no condition"),
        (
            "\uff53tock > 0",
            "column 1: there is no feature or attribute '\uff53tock'; did you mean 'stock'?",
        ),
        ("country", "column 1: 'country' is a text, no condition"),
        ("'a'", "column 1: \"'a'\" is a text, no condition"),
        ("page.type == 'x'", "column 1: 'page.type' cannot be written in a condition: names"),
        ("sale or page-type == 'x'", "column 9: 'page-type' cannot be written in a condition:"),
        ("24-h == 'x'", "column 1: '24-h' cannot be written in a condition: names"),
        ("größe > 0", "column 1: 'größe' cannot be written in a condition: names"),
        ("class == 'x'", "column 1: 'class' cannot be written in a condition: it is a word of"),
        ("stock = 1", "column 7: write '==' in place of '='"),
        ("stock is 1", "column 7: write '==' in place of 'is'"),
        ("stock <> 1", "column 7: write '!=' in place of '<>'"),
        ("stock => 1", "column 7: write '>=' in place of '=>'"),
        ("sale && new", "column 6: write 'and' in place of '&&'"),
        ("sale | new", "column 6: write 'or' in place of '|'"),
        ("!sale", "column 1: write 'not' in place of '!'"),
        ("sale AND new", "column 6: write 'and' in place of 'AND'"),
        ("stock == None", "column 10: 'None' has no meaning here; allowed are names"),
        ("stock + 1 > 0", "column 7: there is no arithmetic"),
        ("stock -1 > 0", "column 7: there is no arithmetic"),
        ("- stock > 0", "column 1: there is no arithmetic"),
        ("len(country) > 0", "column 1: 'len' cannot be called; allowed are names"),
        ("country.upper() == 'A'", "column 8: '.' has no meaning here"),
        ("country[0] == 'D'", "column 8: before '[' an operator or a comma is missing"),
        ("country in ['DE' 'AT']", "column 18: before \"'AT'\" an operator or a comma is missing"),
        ("sale not new", "column 6: before 'not' an operator or a comma is missing"),
        ("sale new", "column 6: before 'new' an operator or a comma is missing"),
        ("country in 'DE'", "column 12: after 'in' a list of constants is needed"),
        ("country in ('DE')", "column 13: after 'in' a list of constants is needed"),
        ("country in []", "column 12: after 'in' a list of constants is needed"),
        ("country in [brand]", "column 13: a list after 'in' has constants only"),
        ("country in ['DE', 1]", "column 19: 'country' is a text, and '1' is a number; both"),
        ("stock in [1, true]", "column 14: 'stock' is a number, and 'true' is a boolean; both"),
        ("stock == country", "column 10: 'stock' is a number, and 'country' is a text; both"),
        ("0 < stock == sale", "column 14: 'stock' is a number, and 'sale' is a boolean; both"),
        ("country < 'a'", "column 1: 'country' is a text; <, <=, > and >= are for numbers"),
        ("sale >= new", "column 1: 'sale' is a boolean; <, <=, > and >= are for numbers"),
        ("sale == (stock > 0)", "column 10: only a name or a constant can be compared"),
        ("stock, sale", "column 1: a list may only follow 'in'"),
        ("[1] == stock", "column 1: a list may only follow 'in'"),
        ("sale and", "column 9: the condition ends too early"),
        ("sale and  \n", "line 1, column 9: the condition ends too early"),
        ("or sale", "column 1: 'or' does not fit here"),
        ("stock > > 1", "column 9: '>' does not fit here"),
        ("sale == not new", "column 9: 'not' does not fit here"),
        ("(sale", "column 1: '(' is never closed: ')' is missing"),
        ("sale) or (new", "column 5: ')' closes nothing"),
        ("stock in [1)", "column 12: ')' closes nothing"),
        ("country == 'a", "column 12: this text has no closing '"),
        ("country == '\\d'", "column 12: this text has no closing ', or a line break, a"),
        ("country == 'a\0'", "column 12: this text has no closing ', or a line break, a"),
        ("country == '\ud800'", "column 12: this text has no closing ', or a line break, a"),
        ("sale \0", "column 6: '\\x00' has no meaning here"),
        ("sale # new", "column 6: '#' has no meaning here"),
        ("stock > 007", "column 9: this is no number"),
        ("stock > 1_000", "column 9: this is no number"),
        ("stock > 1and sale", "column 9: this is no number"),
        ("stock > ٣", "column 9: this is no number"),
        ("stock > 1e999", "column 9: the number is too large; the largest is 1.798e+308"),
        ("stock > -" + "9" * 400, "column 9: the number is too large; the largest is 1.798e+308"),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse(text, TYPES | UNREADABLE)


def longest(length: int) -> str:
    return "sale" + " " * (length - 4)


def most_terms(count: int) -> str:
    return "<".join(["1"] * count)


def within(count: int) -> str:
    return "(" * count + "sale" + ")" * count


def denials(count: int) -> str:
    return "not " * count + "sale"


@pytest.mark.parametrize(
    ("of_size", "most", "message"),
    [
        (longest, EXPRESSION_CHARACTERS, "column 1001: the condition has 1,001 characters;"),
        (most_terms, EXPRESSION_TERMS, "column 401: the condition has 201 names and constants;"),
        (within, EXPRESSION_DEPTH, "column 21: too many parentheses"),
        (denials, EXPRESSION_DEPTH, "column 85: too many parentheses"),
    ],
)
def test_conditions_are_bounded(of_size: Callable[[int], str], most: int, message: str) -> None:
    parse(of_size(most), TYPES)
    with pytest.raises(ValueError, match=f"^{message}"):
        parse(of_size(most + 1), TYPES)


@pytest.mark.parametrize(
    "error", [SyntaxError(), SyntaxError("", ("", 1, 99, "")), ValueError(), RecursionError()]
)
def test_whatever_the_parser_raises_has_a_place(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(ast, "parse", fail)
    with pytest.raises(ValueError, match=PLACE) as caught:
        parse("sale", TYPES)
    assert type(caught.value) is ValueError


HOSTILE = r"""
__import__('os').system('true') | ().__class__.__bases__[0] | eval('1') | sale() | lambda: sale
(x := 1) | sale if new else sale | [x for x in country] | {1: 2} | await sale | yield | *sale | ...
f'{sale}' | b'a' | u'a' | r'a' | '''a''' | 'a' 'b' | 'a | " | '\d' | '\x41' | None | country[0]
1 + 1 | 1 - 1 | 2 ** 99 | 9 // 2 | ~1 | 1 @ 2 | 1 << 9 | sale & new | sale ^ new | 'a' is 'b'
sale is not new | print sale | assert sale | import os | pass | match | sale AND new | $sale
1e999 | -1e999 | 0x10 | 0b1 | 0o7 | 1j | 1_0 | 01 | 1if sale else 0 | 1.2.3 | 1.. | - | -. | sale?
sale # new | sale; new | sale: | sale = new | sale -> new | sale == not new | (sale == new) == sale
stock | country | 1 | 'a' | stock == 'a' | country > 'a' | sale < new | 1 in [sale] | sale, new | _
1 in 1 | 1 in [] | 1 in ['a'] | 2 in [[1]] | () | [] | [sale] | unknown | page-type | page.type
größe | sale and | and | not | sale not | not not | in [1] | ( | ) | [ | ] | , | sale or ( | 1 <
sale and and new | 1 < < 2 | 1 < > 2 | sale new | < 1 | class | s.real | `sale`
"""
FRAGMENTS = [
    *HOSTILE.replace("\n", " | ").split(" | "),
    *["'a\nb'", "'\\\n'", "sale \\\n", "sale\0", "\0", "'\0'", "\x0c", "\x1b", "\x85", "9" * 400],
    *["\ud800", "'\ud800'", "\ufeffsale", "\u202esale", "sale\u00a0and new", "sale\u2028and new"],
    *[
        "\uff53tock > 0",
        "s\uff41le",
        "\U0001d42c\U0001d41a\U0001d425\U0001d41e",
        "\u0663",
        "\u00b2",
    ],
]
PIECES = (
    "( ) [ ] (( ([ { ' \" 'a' f'{ \\ . , a. a- 9 9. 9e é ! < = 1< 1, - ~ a lambda: country[ sale("
)
REPEATED = [
    *PIECES.split(),
    *["not ", "- ", "1 < ", "and ", "sale and (", "not (", "sale or ", "1 in [", "\n(", "\t", " "],
    *["\uff53", "\U0001d11e", "\0", "\ud800"],
]


def hostile_texts(count: int) -> Iterator[str]:
    """Yield texts that are no conditions, the same each time."""
    rng = random.Random(20)
    for number in range(count):
        fragment = rng.choice(FRAGMENTS)
        match number % 5:
            case 0:
                yield fragment
            case 1:
                yield rng.choice(["sale and ", "not ", "(", "\n", "'é' != country or "]) + fragment
            case 2:
                yield fragment + rng.choice([" and sale", " == ", " or", ")", "\n", " in ", " ("])
            case 3:
                yield rng.choice(REPEATED) * rng.choice([3, 15, 30, 100, 300, 900])
            case 4:
                middle = "".join(rng.choices(REPEATED, k=rng.randrange(1, 150)))
                yield "(" * rng.randrange(9) + middle + rng.choice([" and", "\\", "'\0", "@"])


def refusal(text: str) -> str | None:
    """Return why a text is refused, which never comes as anything but ValueError or a warning."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            parse(text, TYPES | UNREADABLE)
        except ValueError as error:
            return str(error)
        finally:
            assert not warned
    return None


def test_a_thousand_hostile_texts_are_refused_with_a_place() -> None:
    for text in hostile_texts(1_000):
        assert PLACE.match(refusal(text) or "parsed"), text


@given(st.text(max_size=60) | st.lists(st.sampled_from([*FRAGMENTS, *REPEATED])).map(" ".join))
def test_any_text_is_a_condition_or_is_refused_with_a_place(text: str) -> None:
    why = refusal(text)
    assert why is None or PLACE.match(why)
    assert len(why or "") <= 250


@given(CONDITIONS, st.data())
def test_a_text_with_one_wrong_character_never_fails_otherwise(
    meant: Meant, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(meant.text) - 1))
    put = data.draw(
        st.sampled_from(["", " ", "\\", "'", "(", "]", ",", "-", "not ", "é", "\0", "="])
    )
    why = refusal(meant.text[:at] + put + meant.text[at + 1 :])
    assert why is None or PLACE.match(why)
