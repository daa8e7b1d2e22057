"""The three walks of docs/architecture.md: every stop is a direct call from an earlier one."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MethodType
from typing import NamedTuple
from unittest.mock import AsyncMock

import pytest

import service
from service.log.stores.sqlite import SqliteStore
from tests.support.keys import Keys
from tests.support.plug import Plug
from tests.support.service import Wire, serving

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
CODE = Path(service.__file__).parent
MOST_STOPS = 8


class Function(NamedTuple):
    path: str
    name: str


def walk(title: str) -> list[Function]:
    """The stops of one table of the page."""
    section = PAGE.read_text().partition(f"### {title}\n")[2].partition("\n#")[0]
    return [Function(*stop) for stop in re.findall(r"^\| `(.+?)` \| `(.+?)` \|", section, re.M)]


def function_of(frame: FrameType | None) -> Function | None:
    """None outside of the service."""
    if frame is None or not (path := Path(frame.f_code.co_filename)).is_relative_to(CODE):
        return None
    return Function(path.relative_to(CODE).as_posix(), frame.f_code.co_qualname)


@contextmanager
def calls() -> Iterator[list[tuple[str, Function]]]:
    """Every function of the service that is called, in order, and the file that calls it."""
    found: list[tuple[str, Function]] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (called := function_of(frame)) is not None:
            caller = function_of(frame.f_back)
            found.append(("" if caller is None else caller.path, called))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def expect_walk(stops: list[Function], found: list[tuple[str, Function]]) -> None:
    assert 1 < len(stops) <= MOST_STOPS
    assert stops[0] in [called for _, called in found]
    files = {stops[0].path}
    for stop in stops[1:]:
        callers = {caller for caller, called in found if called == stop}
        assert callers & files, f"{stop} is called from {callers or 'nowhere'}, not from {files}"
        files.add(stop.path)


@pytest.fixture
def store(tmp_path: Path) -> Callable[[], SqliteStore]:
    return lambda: SqliteStore(tmp_path / "forage.db")


def warmed(wire: Wire) -> Wire:
    """The first decisions of a size are made in a thread."""
    for _ in range(3):
        wire.select(policy="linucb")
    return wire


def test_a_context_goes_through_select_as_the_page_says(store: Callable[[], SqliteStore]) -> None:
    with serving(store()) as wire:
        warmed(wire)
        with calls() as found:
            wire.select(policy="linucb")
    expect_walk(walk("A context through `/select`"), found)


def test_a_reward_goes_through_reward_as_the_page_says(store: Callable[[], SqliteStore]) -> None:
    with serving(store()) as wire:
        decision = warmed(wire).select(policy="linucb")
        with calls() as found:
            wire.reward(decision, 1.0)
    expect_walk(walk("A reward through `/reward`"), found)


def test_checks_come_in_the_order_of_the_page(tmp_path: Path) -> None:
    """A request that fails all of them is mended step by step."""
    keys = Keys(tmp_path / "keys.json")
    keys.add("page", "select", experiments=["shop"], origins=["https://shop.example"])
    keys.add("slow", "select", "admin", rate="1/hour", profile={"body_bytes": 800})
    keys.add("good", "select", "admin")
    fields = {
        "Host": "evil.example",
        "Content-Length": "9999",
        "Content-Type": "text/plain",
        "Content-Encoding": "gzip",
        "X-Envoy-Expected-Rq-Timeout-Ms": "0",
    }
    settings = {"keys": keys.path, "max_body_bytes": 3_000, "max_pending": 1}
    with serving(**settings) as wire:
        wire.post("/select", {}, headers=keys.headers("slow"))  # which uses up its rate
        wire.services.overload.waiting, wire.services.lifecycle.starting = 1, True
        found = []

        def ask(method: str = "PUT", content: bytes = b"", /, **changes: str | None) -> None:
            for name, value in changes.items():
                fields.pop(name.replace("_", "-"), None)
                if value is not None:
                    fields[name.replace("_", "-")] = value
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            plug = Plug(wire)
            plug.send(f"{method} /select HTTP/1.1\r\n{lines}\r\n".encode() + content)
            answer = plug.receive()
            found.append((answer.status_code, answer.json()["type"].rpartition("/")[2]))

        ask("POST")
        wire.services.overload.waiting = 0
        ask()
        ask(Content_Length="2000")
        ask(Host="forage", Origin="https://evil.example")
        ask(**keys.headers("page"))
        ask(**keys.headers("slow"))
        ask(Content_Length="500")
        ask(**keys.headers("good"))
        ask(Origin=None)
        wire.services.lifecycle.starting = False
        ask()
        ask(Content_Encoding=None)
        ask("POST", b"fa0\r\n" + b" " * 4_000, Content_Length=None, Transfer_Encoding="chunked")
        ask("POST", b"{", Content_Length="1", Transfer_Encoding=None)
        ask("POST", b"{", Content_Type="application/json")
        ask("POST", b"{", X_Envoy_Expected_Rq_Timeout_Ms=None)
        ask("POST", b'{"a": 1}', Content_Length="8")
    section = PAGE.read_text().partition("## The order of checks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .+ \| `\w+\.py` \| (\d+) \| `(.+)` \|$", section, re.M)
    assert found == [(int(status), slug) for status, slug in rows]


def test_a_start_goes_as_the_page_says(
    store: Callable[[], SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a snapshot and the events after it."""
    with serving(store()) as wire:
        log = wire.services.log
        wire.run(log.snapshots.save(log.replicas.by_name["shop"]))
        wire.teach()
        monkeypatch.setattr(log.snapshots, "save_last", AsyncMock())
    with calls() as found, serving(store()) as wire:
        assert wire.get("/readyz").status_code == 200
    expect_walk(walk("A start"), found)


def test_no_attribute_is_a_method_of_another_object() -> None:
    """ "Go to definition" leads on from every call: objects hold each other, not their methods."""
    with serving() as wire:
        wire.reward(wire.select(), 1.0)
        seen, left, found = set[int](), list[object](vars_of(wire.services)), list[str]()
        while left:
            each = left.pop()
            if isinstance(each, dict):
                left += each.values()
            elif isinstance(each, list | tuple | set):
                left += each
            elif type(each).__module__.startswith("service.") and id(each) not in seen:
                seen.add(id(each))
                for value in vars_of(each):
                    if isinstance(value, MethodType) and value.__self__ is not each:
                        found.append(f"{type(each).__name__}: {value.__qualname__}")
                    left.append(value)
    assert not found
    assert len(seen) > 100


def vars_of(of: object) -> list[object]:
    """The values of the attributes of an object, with those in slots."""
    slots = [name for base in type(of).__mro__ for name in getattr(base, "__slots__", ())]
    return [getattr(of, name, None) for name in {*slots, *getattr(of, "__dict__", {})}]
