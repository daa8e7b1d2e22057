"""Conditions of rules, such as `stock > 0 and country in ['DE', 'AT']`.

A scanner refuses every character and word that no condition has. Python's parser then gives the
tree, whose types are checked once. A condition is never run as code. Missing values follow Kleene:
`stock > 0 or sale` is true where the stock is missing and the sale is on.
"""

import ast
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from service.naming import quoted, suggestion

EXPRESSION_CHARACTERS, EXPRESSION_TERMS, EXPRESSION_DEPTH = 1_000, 200, 20
"""Most characters, names and constants, and parentheses or `not` within each other of a condition:
the largest is parsed in 2 ms, and its tree is far from the recursion limit."""

LARGEST_FLOAT = float(np.finfo(float).max)

ValueType = Literal["number", "text", "boolean"]
Scalar: TypeAlias = float | str | bool
Flags: TypeAlias = bool | npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Values of one name for all arms.

    values   (n,) float64, bool, or str as objects; any value of the type where it is missing
    known    (n,) whether the value is there
    """

    values: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]


Values: TypeAlias = Scalar | Column | None


class Truth(NamedTuple):
    """Kleene's truth of a condition: (n,) each, or a bool each where no name has a column.

    true    whether the condition is known to hold
    known   whether the values that are there tell if it holds
    """

    true: Flags
    known: Flags


_PLACEHOLDERS: dict[ValueType, Scalar] = {"number": 0.0, "text": "", "boolean": False}
_DTYPES: dict[ValueType, type] = {"number": np.float64, "text": object, "boolean": np.bool_}


def column_of(values: Sequence[object], type: ValueType) -> Column:
    """Make a column of Python values. None, another type and a number that is not finite are
    missing."""
    typed = [_typed(value, type) for value in values]
    filled = [_PLACEHOLDERS[type] if value is None else value for value in typed]
    known = [value is not None for value in typed]
    return Column(np.array(filled, _DTYPES[type]), np.array(known, np.bool_))


def _typed(value: object, type: ValueType) -> Scalar | None:
    """Return a value of the type; None: it is missing."""
    match value:
        case bool():
            return value if type == "boolean" else None
        case str():
            return value if type == "text" else None
        case int() | float() if type == "number" and -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
            return float(value)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Scalar
    type: ValueType

    def read(self, values: Mapping[str, Values]) -> tuple[Any, Flags]:
        return self.value, True


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    type: ValueType

    def read(self, values: Mapping[str, Values]) -> tuple[Any, Flags]:
        """Return the values, and whether each is there."""
        value = values.get(self.name)
        if isinstance(value, Column):
            return value.values, value.known
        typed = _typed(value, self.type)
        return (_PLACEHOLDERS[self.type], False) if typed is None else (typed, True)


_Operand: TypeAlias = _Constant | _Name
_Told: TypeAlias = tuple[Flags, Flags]  # known to hold, known not to hold


@dataclass(frozen=True, slots=True)
class _Flag:
    """A boolean by itself."""

    operand: _Operand

    def tell(self, values: Mapping[str, Values]) -> _Told:
        holds, known = self.operand.read(values)
        true = holds & known
        return true, known ^ true


@dataclass(frozen=True, slots=True)
class _Comparison:
    compare: Callable[[Any, Any], Flags]
    left: _Operand
    right: _Operand

    def tell(self, values: Mapping[str, Values]) -> _Told:
        left, left_known = self.left.read(values)
        right, right_known = self.right.read(values)
        known = left_known & right_known
        true = self.compare(left, right) & known
        return true, known ^ true


@dataclass(frozen=True, slots=True)
class _Membership:
    operand: _Operand
    options: frozenset[Scalar]

    def tell(self, values: Mapping[str, Values]) -> _Told:
        value, known = self.operand.read(values)
        true = self._holds(value) & known
        return true, known ^ true

    def _holds(self, value: Any) -> Flags:
        if isinstance(value, np.ndarray):  # 30 us for 1,000 arms, however many options there are
            return np.fromiter(map(self.options.__contains__, value.tolist()), bool, len(value))
        return value in self.options


@dataclass(frozen=True, slots=True)
class _Not:
    part: "_Condition"

    def tell(self, values: Mapping[str, Values]) -> _Told:
        true, false = self.part.tell(values)
        return false, true


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple["_Condition", ...]

    def tell(self, values: Mapping[str, Values]) -> _Told:
        true, false = zip(*[part.tell(values) for part in self.parts], strict=True)
        return reduce(operator.and_, true), reduce(operator.or_, false)


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple["_Condition", ...]

    def tell(self, values: Mapping[str, Values]) -> _Told:
        true, false = zip(*[part.tell(values) for part in self.parts], strict=True)
        return reduce(operator.or_, true), reduce(operator.and_, false)


_Condition: TypeAlias = _Flag | _Comparison | _Membership | _Not | _All | _Any


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition that `parse` has checked.

    names   features and attributes that it reads
    texts   each name and a text that it is compared with, once, in the order of the condition
    """

    text: str
    names: frozenset[str]
    texts: tuple[tuple[str, str], ...]
    _condition: _Condition

    def evaluate(self, values: Mapping[str, Values]) -> Truth:
        """Tell where the condition holds. A name that `values` lacks, None and a scalar of another
        type are missing. All columns have one length."""
        true, false = self._condition.tell(values)
        return Truth(true, true | false)


def parse(text: str, types: Mapping[str, ValueType]) -> Expression:
    """Check a condition on names of these types. Raises ValueError, which begins with the place:
    'column 7: ...', or 'line 2, column 3: ...' in a text of several lines."""
    source = _Source(text)
    if len(text) > EXPRESSION_CHARACTERS:
        size = f"the condition has {len(text):,} characters"
        raise source.error(EXPRESSION_CHARACTERS, f"{size}; allowed are {EXPRESSION_CHARACTERS:,}")
    names = _scan(source, types)
    checker = _Checker(source, types)
    condition = checker.condition(_tree(source))
    return Expression(text, names, tuple(checker.texts), condition)


class _Source:
    """The text of a condition, and places in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, index: int, message: str) -> ValueError:
        """Return the error that says where the text is wrong, and what."""
        column = f"column {index - self.text.rfind(chr(10), 0, index)}"
        if "\n" in self.text:
            column = f"line {self.text.count(chr(10), 0, index) + 1}, {column}"
        return ValueError(f"{column}: {message}")


_ALLOWED = "allowed are names, numbers, 'texts', comparisons, in [...], and, or, not, parentheses"
_NO_ARITHMETIC = "there is no arithmetic, and '-' may only be the sign of a number"
_TOO_DEEP = (
    f"too many parentheses, 'and', 'or' and 'not' within each other; allowed are {EXPRESSION_DEPTH}"
)
_WORDS = frozenset({"and", "or", "not", "in"})
_BOOLEANS = {"True": True, "False": False, "true": True, "false": False}
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_INSTEAD = {
    **dict.fromkeys(("=", "===", "is"), "=="),
    **dict.fromkeys(("<>", "!==", "=!"), "!="),
    **dict.fromkeys(("&", "&&"), "and"),
    **dict.fromkeys(("|", "||"), "or"),
    "!": "not",
    "=<": "<=",
    "=>": ">=",
}
"""Operators of other languages, and the one of conditions."""

_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])"
_TEXT = "|".join(
    rf"{quote}(?:[^{quote}\\\x00-\x1f\x7f\ud800-\udfff]|\\[\\'\"])*{quote}" for quote in "'\""
)
_TOKEN = re.compile(
    rf"(?P<number>{_NUMBER})|(?P<text>{_TEXT})|(?P<operator>(?:and|or|in|not[ \t\r\n]+in)(?!\w))"
    r"|(?P<not>not(?!\w))|(?P<word>[^\W\d]\w*)|(?P<symbol>[<>=!&|]+)"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)|(?P<blank>[ \t\r\n]+)|(?P<other>.)",
    re.DOTALL,
)
_DECLARED = re.compile(r"\w[\w.-]*")
_BLANKS = str.maketrans("\t\r\n", "   ")
_CLOSING = {"(": ")", "[": "]"}
_TERMS = frozenset({"number", "text", "boolean", "name"})


class _Token(NamedTuple):
    """A word of a condition.

    kind   number, text, boolean, name, not, operator (and, or, in, not in), symbol (a comparison),
           open, close or comma
    at     index in the text
    """

    kind: str
    at: int
    text: str


def _scan(source: _Source, types: Mapping[str, ValueType]) -> frozenset[str]:
    """Refuse what no condition has, and return the names that it reads.

    Python's parser then meets only tokens that mean the same to it as here, in few brackets.
    """
    tokens = [
        _token(source, _Token(str(found.lastgroup), found.start(), found.group()), types)
        for found in _TOKEN.finditer(source.text)
        if found.lastgroup != "blank"
    ]
    if not tokens:
        raise source.error(0, "the condition is empty; write for example stock > 0")
    _expect_few_terms(source, tokens)
    _expect_operators(source, tokens)
    _expect_brackets(source, tokens)
    for kind, at, name in tokens:
        if kind == "name" and name not in types:
            near = suggestion(name, types)
            raise source.error(at, f"there is no feature or attribute {quoted(name)}{near}")
    return frozenset(token.text for token in tokens if token.kind == "name")


def _token(source: _Source, token: _Token, types: Mapping[str, ValueType]) -> _Token:
    """Return a token with the kind of its word. Refuse one that conditions do not have."""
    kind, at, text = token
    _expect_readable(source, at, types)
    match kind:
        case "other":
            raise source.error(at, _stray(text))
        case "symbol" if text not in _COMPARISONS:
            raise source.error(at, _foreign(text))
        case "number" if abs(float(text)) > LARGEST_FLOAT:
            raise source.error(at, f"the number is too large; the largest is {LARGEST_FLOAT:.4g}")
        case "word" if _is_boolean(text, types):
            return _Token("boolean", at, text)
        case "word" if text not in types and (keyword.iskeyword(text) or text.lower() in _WORDS):
            raise source.error(at, _foreign(text))
        case "word":
            return _Token("name", at, text)
        case _:
            return token


def _is_boolean(word: str, types: Mapping[str, ValueType]) -> bool:
    return word in _BOOLEANS and (keyword.iskeyword(word) or word not in types)


def _expect_readable(source: _Source, at: int, types: Mapping[str, ValueType]) -> None:
    """Refuse a declared name that no condition can have, such as 'page.type' or 'class'."""
    found = _DECLARED.match(source.text, at)
    if found is None or (name := found.group()) not in types:
        return
    if name in _WORDS or name in _BOOLEANS or re.fullmatch(_NUMBER, name):
        return
    if not (name.isascii() and name.isidentifier()):
        why = "names there have letters a to z, digits and '_', and begin with no digit"
    elif keyword.iskeyword(name):
        why = "it is a word of Python"
    else:
        return
    raise source.error(at, f"{quoted(name)} cannot be written in a condition: {why}")


def _foreign(text: str) -> str:
    """Say what to write in place of an operator or a word that conditions do not have."""
    if instead := text.lower() if text.lower() in _WORDS else _INSTEAD.get(text):
        return f"write '{instead}' in place of '{text}'"
    return f"{quoted(text)} has no meaning here; {_ALLOWED}"


def _stray(character: str) -> str:
    """Say why a character begins no token."""
    if character in "'\"":
        return (
            f"this text has no closing {character}, or a line break, a control character or an "
            "escape other than \\\\, \\' and \\\""
        )
    if character in "+-*/%^~@":
        return _NO_ARITHMETIC
    if character.isdigit():
        return "this is no number; write for example 5, -2.5 or 1e6"
    return _foreign(character)


def _expect_few_terms(source: _Source, tokens: Sequence[_Token]) -> None:
    terms = [token.at for token in tokens if token.kind in _TERMS]
    if len(terms) > EXPRESSION_TERMS:
        size = f"the condition has {len(terms)} names and constants"
        raise source.error(terms[EXPRESSION_TERMS], f"{size}; allowed are {EXPRESSION_TERMS}")


def _expect_operators(source: _Source, tokens: Sequence[_Token]) -> None:
    """Refuse a term or bracket that directly follows a term: a call, a subscript, 'a' 'b'."""
    for before, (kind, at, text) in pairwise(tokens):
        if before.kind in _TERMS | {"close"} and kind in _TERMS | {"open", "not"}:
            if kind == "number" and text.startswith("-"):
                raise source.error(at, _NO_ARITHMETIC)
            if text == "(" and before.kind == "name":
                raise source.error(before.at, f"{quoted(before.text)} cannot be called; {_ALLOWED}")
            raise source.error(at, f"before {quoted(text)} an operator or a comma is missing")


def _expect_brackets(source: _Source, tokens: Sequence[_Token]) -> None:
    """Refuse brackets that do not match, and too many within each other."""
    opened = list[_Token]()
    for token in tokens:
        if token.kind == "open":
            opened.append(token)
            if len(opened) > EXPRESSION_DEPTH:
                raise source.error(token.at, _TOO_DEEP)
        elif token.kind == "close" and (not opened or _CLOSING[opened.pop().text] != token.text):
            raise source.error(token.at, f"'{token.text}' closes nothing")
    if opened:
        _, at, text = opened[-1]
        raise source.error(at, f"'{text}' is never closed: '{_CLOSING[text]}' is missing")


def _tree(source: _Source) -> ast.expr:
    """Return Python's tree of a scanned text in parentheses, in which lines may end anywhere."""
    try:
        return ast.parse(f"({source.text.translate(_BLANKS)})", mode="eval").body
    except SyntaxError as error:
        at = max((error.offset or 0) - 2, 0)  # it counts from 1, and the parenthesis
    except (ValueError, RecursionError, MemoryError):
        raise source.error(0, _TOO_DEEP) from None
    found = _TOKEN.match(source.text, at)
    if found is None:
        raise source.error(len(source.text.rstrip()), "the condition ends too early")
    raise source.error(at, f"{quoted(found.group())} does not fit here; {_ALLOWED}")


_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], Flags]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _equal_texts(left: Any, right: Any) -> Flags:
    """Compare texts, or objects (n,) of them. numpy's own texts would lose NULs at their end."""
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    equal: Flags = np.asarray(left, object) == np.asarray(right, object)
    return equal


class _Checker:
    """Turns Python's tree into conditions whose types fit.

    texts   each name and a text that it is compared with: the keys
    """

    def __init__(self, source: _Source, types: Mapping[str, ValueType]) -> None:
        self._source, self._types = source, types
        self._encoded = f"({source.text}".encode()
        self.texts: dict[tuple[str, str], None] = {}

    def condition(self, node: ast.expr, depth: int = 0) -> _Condition:
        """Return the condition of a node, which has `depth` of `and`, `or` and `not` around it."""
        if depth > EXPRESSION_DEPTH:
            raise self._error(node, _TOO_DEEP)
        match node:
            case ast.BoolOp():
                parts = tuple(self.condition(each, depth + 1) for each in node.values)
                return _All(parts) if isinstance(node.op, ast.And) else _Any(parts)
            case ast.UnaryOp(op=ast.Not()):
                return _Not(self.condition(node.operand, depth + 1))
            case ast.Compare():
                return self._chain(node)
            case _:
                return self._flag(node)

    def _flag(self, node: ast.expr) -> _Condition:
        operand = self._operand(node)
        if operand.type != "boolean":
            what = self._what(node, operand)
            raise self._error(node, f"{what}, no condition; compare it, such as in stock > 0")
        return _Flag(operand)

    def _chain(self, node: ast.Compare) -> _Condition:
        sides = pairwise([node.left, *node.comparators])
        parts = tuple(
            self._comparison(left, op, right)
            for (left, right), op in zip(sides, node.ops, strict=True)
        )
        return parts[0] if len(parts) == 1 else _All(parts)

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> _Condition:
        operand = self._operand(left)
        if isinstance(op, ast.In | ast.NotIn):
            member = _Membership(operand, self._options(left, operand, right))
            return _Not(member) if isinstance(op, ast.NotIn) else member
        other = self._operand(right)
        self._expect_alike(left, operand, right, other)
        self._note(operand, other)
        self._note(other, operand)
        if (order := _ORDERS.get(type(op))) is None:
            equal = _equal_texts if operand.type == "text" else operator.eq
            same = _Comparison(equal, operand, other)
            return _Not(same) if isinstance(op, ast.NotEq) else same
        if operand.type != "number":
            raise self._error(left, f"{self._what(left, operand)}; <, <=, > and >= are for numbers")
        return _Comparison(order, operand, other)

    def _options(self, left: ast.expr, operand: _Operand, right: ast.expr) -> frozenset[Scalar]:
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            raise self._error(
                right, "after 'in' a list of constants is needed, such as ['DE', 'AT']"
            )
        options = set[Scalar]()
        for each in right.elts:
            option = self._operand(each)
            if not isinstance(option, _Constant):
                raise self._error(
                    each, "a list after 'in' has constants only, such as ['DE', 'AT']"
                )
            self._expect_alike(left, operand, each, option)
            self._note(operand, option)
            options.add(option.value)
        return frozenset(options)

    def _note(self, operand: _Operand, other: _Operand) -> None:
        """Note a name and the text that it is compared with."""
        text = other.value if isinstance(other, _Constant) else None
        if isinstance(operand, _Name) and isinstance(text, str):
            self.texts[operand.name, text] = None

    def _operand(self, node: ast.expr) -> _Operand:
        match node:
            case ast.Name(id="true" | "false") if _is_boolean(node.id, self._types):
                return _Constant(_BOOLEANS[node.id], "boolean")
            case ast.Name():
                return _Name(node.id, self._types[node.id])
            case ast.Constant(value=bool(value)):
                return _Constant(value, "boolean")
            case ast.Constant(value=str(value)):
                return _Constant(value, "text")
            case ast.Constant(value=int(value) | float(value)):
                return _Constant(float(value), "number")
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))):
                return _Constant(-float(value), "number")
            case ast.List() | ast.Tuple():
                raise self._error(node, "a list may only follow 'in'")
            case _:
                raise self._error(
                    node, "only a name or a constant can be compared; join conditions with 'and'"
                )

    def _expect_alike(
        self, left: ast.expr, operand: _Operand, right: ast.expr, other: _Operand
    ) -> None:
        if operand.type != other.type:
            both = f"{self._what(left, operand)}, and {self._what(right, other)}"
            raise self._error(right, f"{both}; both sides of a comparison have one type")

    def _what(self, node: ast.expr, operand: _Operand) -> str:
        """Say of what type an operand is."""
        stop = self._index(node.end_col_offset or 0)
        shown = self._source.text[self._index(node.col_offset) : stop]
        return f"{quoted(shown)} is a {operand.type}"

    def _index(self, offset: int) -> int:
        """Return the index in the text of an offset of the tree, which counts bytes."""
        return max(len(self._encoded[:offset].decode()) - 1, 0)

    def _error(self, node: ast.expr, message: str) -> ValueError:
        return self._source.error(self._index(node.col_offset), message)
