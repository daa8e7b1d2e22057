"""What every store owes the engine for the decisions it keeps: once, counted, listed in the order
they came, due until settled."""

from unittest.mock import ANY

from service.log.stores import Store
from service.log.stores.base import Append, Appended, DecisionRow, Mark, MarkConflict, RowStored
from tests.support.stores import decision, event, over_every_store


@over_every_store
async def test_a_decision_is_kept_once(store: Store) -> None:
    """Also among the counts by policy."""
    first = DecisionRow("zoo", "d", "linucb", b"first", due=5.0)
    again = DecisionRow("zoo", "d", "random", b"again", due=1.0)
    assert await store.commit([first, again]) == [RowStored(1), RowStored(0, b"first")]
    assert await store.commit([again]) == [RowStored(0, b"first")]
    assert await store.decision("zoo", "d") == b"first"
    assert await store.decision("shop", "d") is None
    assert await store.due("zoo", 1.0, 10) == []
    await store.commit([DecisionRow("zoo", "e", "random", b"e"), decision("f"), again])
    assert (await store.describe("zoo")).counts == {"linucb": 2, "random": 1}
    assert (await store.describe("shop")).counts == {}


@over_every_store
async def test_rows_are_listed_in_the_order_they_came_and_in_pages(store: Store) -> None:
    """Their ids are no order, and another experiment's rows lie between them."""
    for name in "caebd":
        await store.commit([decision(name), DecisionRow("shop", name, "linucb", b"other")])
    first = await store.decisions("zoo", 0, 2)
    rest = await store.decisions("zoo", first[-1].number, 9)
    assert [(row.id, row.payload) for row in first] == [("c", b"c"), ("a", b"a")]
    assert [row.id for row in rest] == ["e", "b", "d"]
    numbers = [row.number for row in first + rest]
    assert numbers == sorted(set(numbers))
    assert await store.decisions("zoo", rest[-1].number, 9) == []
    await store.commit([decision("a"), decision("f")])
    for row in first + rest:  # each is found again by its number
        assert await store.decisions("zoo", row.number - 1, 1) == [row]
    assert await store.decisions("nobody", 0, 9) == []


@over_every_store
async def test_due_decisions_come_oldest_first(store: Store) -> None:
    await store.commit([decision("c", 30.5), decision("a", 10.0), decision("b", 20.0)])
    await store.commit([decision("never"), decision("later", 99.0)])
    assert await store.due("zoo", 9.99, 10) == []
    assert await store.due("zoo", 30.5, 10) == [b"a", b"b", b"c"]
    assert await store.due("zoo", 30.5, 2) == [b"a", b"b"]


@over_every_store
async def test_a_settled_decision_is_no_longer_due(store: Store) -> None:
    await store.commit([decision("a", 1.0), decision("b", 2.0)])
    await store.commit([event("s", settles=["a"])])
    assert await store.due("zoo", 9.0, 10) == [b"b"]
    await store.commit([decision("a", 1.0)])
    assert await store.due("zoo", 9.0, 10) == [b"b"]


@over_every_store
async def test_an_event_settles_where_none_or_all_of_its_identities_are_known(
    store: Store,
) -> None:
    """As the expiry of a slate whose arms were settled one by one, which finds nothing to do."""
    both = Append("zoo", b"e", {"x": "1.0", "y": "1.0"}, settles=["a"])
    await store.commit([decision("a", 1.0), event("x"), both])
    assert await store.due("zoo", 9.0, 10) == [b"a"]
    await store.commit([event("y"), both])
    assert await store.due("zoo", 9.0, 10) == []


@over_every_store
async def test_an_event_settles_several_decisions_or_none_of_them(store: Store) -> None:
    """As a block of defaults, of which one decision may have a reward already."""
    await store.commit([decision(name, due) for name, due in (("a", 1.0), ("b", 2.0), ("c", 3.0))])
    block = Append("zoo", b"e", {"x": "0.0", "y": "0.0"}, settles=["a", "b"])
    await store.commit([event("x"), block])
    assert await store.due("zoo", 9.0, 10) == [b"a", b"b", b"c"]
    await store.commit([Append("zoo", b"e", {"y": "0.0", "z": "0.0"}, settles=["b", "c", "late"])])
    await store.commit([decision("late", 4.0)])
    assert await store.due("zoo", 9.0, 10) == [b"a"]


@over_every_store
async def test_a_decision_settled_before_its_row_came_is_never_due(store: Store) -> None:
    """Replicas write on their own: one's reward may come before the other's late row."""
    await store.commit([event("s", settles=["a"]), event("t", settles=["a"]), decision("b", 2.0)])
    await store.commit([event("u", settles=["a"])])
    await store.commit([decision("a", 1.0)])
    assert await store.due("zoo", 9.0, 10) == [b"b"]
    assert await store.decision("zoo", "a") == b"a"


def activation(name: str, due: float | None = None) -> Append:
    opens = None if due is None else (name, due)
    return Append("zoo", b"", {f"activated/{name}": ""}, opens=opens, keep_until=4e9)


@over_every_store
async def test_an_event_opens_a_decision_once(store: Store) -> None:
    await store.commit([decision("a"), decision("b", 5.0)])
    assert await store.due("zoo", 9.0, 10) == [b"b"]
    again = MarkConflict({"activated/a": Mark("", 1)})
    assert await store.commit([activation("a", 3.0), activation("a", 1.0)]) == [
        Appended(1, ANY),
        again,
    ]
    assert await store.commit([activation("a", 1.0)]) == [again]
    assert await store.due("zoo", 2.0, 10) == []
    assert await store.due("zoo", 9.0, 10) == [b"a", b"b"]
    await store.commit([event("s", settles=["a"])])
    assert await store.due("zoo", 9.0, 10) == [b"b"]
    assert [record.position for record in await store.read("zoo", 0, 9)] == [1, 2]


@over_every_store
async def test_a_decision_may_be_opened_before_its_row_comes(store: Store) -> None:
    await store.commit([activation("a", 3.0), activation("b"), event("s")])
    assert await store.due("zoo", 9.0, 10) == []
    await store.commit([decision("a"), decision("b")])
    assert await store.due("zoo", 9e9, 10) == [b"a"]
