"""Trained versions over HTTP: handed over, held at a gate, listed, and called back."""

import asyncio
import hashlib
import io
import tracemalloc
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from service.bandits.encoder import Encoder
from service.bandits.networks import Network
from service.errors import StoreUnavailable
from service.log.committer import RETRY_SECONDS
from service.log.stores.base import Blob, Erasure, Item, Record, Trim
from service.log.stores.memory import MemoryStore
from service.state import codec
from service.state.artifacts import SNAPSHOT_SCHEMA, pack_artifact
from service.state.events import VersionActivated, VersionStaged, decode_event
from service.state.learner import Learner
from service.state.version_gate import GateSums
from tests.support.service import Wire, expect_problem, paths, serving

NET = {"kind": "neural_ucb", "hidden": [3], "embedding": 2, "training": {"first": 4, "growth": 2}}
REPORT = {
    "rewards": 4,
    "seconds": 1.5,
    "validation_loss": 0.5,
    "ridge_loss": 0.75,
    "explained": 9.0,
}
VERSIONS = "/experiments/shop/policies/net/versions"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serving() as wire:
        wire.redefine(policies={"net": NET, "linucb": {"kind": "linucb"}})
        yield wire


def artifact(wire: Wire, *, number: int = 1, outputs: int = 1, **meta: Any) -> bytes:
    """What a trainer hands over: a net of constant weights, and an empty head in its features."""
    state = wire.services.log.replicas.states["shop"]
    learner: Learner = state.learners["net"]
    sizes = [learner.view.width, 3, 2]
    layers = [(np.full(size, 0.25), np.zeros(size[1])) for size in pairwise(sizes)]
    output = np.full((2, outputs), 0.5), np.full(outputs, 0.125)
    encoder = learner.trained(Network(layers), output)
    version = learner.version(number, encoder)
    version.trained_to, version.rewards = state.position, learner.rewards
    described, arrays = learner.describe(version)
    return pack_artifact({**described, **meta}, arrays)


def hand_over(wire: Wire, content: bytes, policy: str = "net") -> Any:
    return wire.post(f"/experiments/shop/policies/{policy}/versions", content=content)


def activated(wire: Wire, policy: str = "net") -> None:
    """Wait until nothing is staged any more."""
    wire.until(lambda: wire.policy(policy)["staged"] is None)


def test_a_version_serves_from_the_position_it_was_activated_at(wire: Wire) -> None:
    wire.teach(4, "net")
    before = wire.policy("net")
    assert (before["version"], before["training_due"], before["training_due_at"]) == (0, True, 4)
    assert before["trained_to"] is None
    watermark = wire.get("/experiments/shop").json()["position"]
    content, open_decision = artifact(wire), wire.select(policy="net")
    wire.teach(2, "net")  # after the watermark
    answer = hand_over(wire, content)
    assert (answer.status_code, answer.json()) == (202, {"version": 1})
    activated(wire)

    after = wire.policy("net")
    position = wire.get("/experiments/shop").json()["position"]
    assert (after["version"], after["staged"], after["rewards"]) == (1, None, 6)
    assert after["head"]["effective_count"] == 2
    assert after["trained_to"] == watermark
    assert (after["training_due"], after["training_due_at"]) == (False, 8)
    [switch] = after["versions"]
    assert (switch["version"], switch["watermark"]) == (1, watermark)
    assert switch["position"] == position
    decision = wire.select(policy="net")
    assert decision["model_version"] == f"net/1@{position}"
    assert wire.reward(decision, 1.0) == wire.reward(open_decision, 1.0) == "accepted"
    assert wire.policy("net")["head"]["effective_count"] == 4

    expect_problem(hand_over(wire, content), 409)  # it is stale by now
    assert wire.policy("net")["version"] == 1
    records = wire.run(wire.services.store.read("shop", 0, 100))
    events = [decode_event(record.payload) for record in records]
    [staged] = [event for event in events if isinstance(event, VersionStaged)]
    [switched] = [event for event in events if isinstance(event, VersionActivated)]
    assert (staged.policy, staged.version, staged.size) == ("net", 1, len(content))
    assert (switched.policy, switched.version) == ("net", 1)


def test_of_two_trainers_at_once_one_hands_its_version_over(wire: Wire) -> None:
    wire.teach(4, "net")
    path = "/experiments/shop/policies/net/versions"
    contents = [artifact(wire), artifact(wire, version_rewards=3)]

    async def both() -> list[int]:
        answers = [wire.client.post(path, content=content) for content in contents]
        return [answer.status_code for answer in await asyncio.gather(*answers)]

    assert sorted(wire.run(both())) == [202, 409]
    activated(wire)
    assert wire.policy("net")["version"] == 1


def test_a_version_of_another_head_or_out_of_turn_is_refused(wire: Wire) -> None:
    wire.teach(4, "net")
    content = artifact(wire)
    meta, arrays = codec.unpack(content, SNAPSHOT_SCHEMA)
    del meta["born"]
    for stale in (artifact(wire, number=3), pack_artifact(meta, arrays)):
        expect_problem(hand_over(wire, stale), 409)
    expect_problem(hand_over(wire, content, policy="best"), 404)
    answer = wire.post("/experiments/none/policies/net/versions", content=content)
    expect_problem(answer, 404)
    wire.redefine(policies={"net": {**NET, "ridge": 2.0}, "linucb": {"kind": "linucb"}})
    expect_problem(hand_over(wire, content), 409)


MISFITS: list[dict[str, Any]] = [
    {},
    {"net.weight0": np.ones((2, 2)), "net.bias0": np.ones(2)},
    {
        "head.A": np.ones((2, 2)),
        "head.b": np.ones(2),
        "head.s": np.ones(2),
        "head.rewards": np.ones(3),
    },
]


def test_what_is_no_artifact_of_the_policy_is_refused(wire: Wire) -> None:
    wire.teach(4, "net")
    whole = artifact(wire)
    flipped = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    for content in (
        *(b"", b"garbage", whole[:-1], flipped, whole + b"\0"),
        *(pack_artifact({"version": 1, "trained_to": 2}, arrays) for arrays in MISFITS),
        *(artifact(wire, trained_to=watermark) for watermark in (0, -1, 10_000)),
    ):
        assert paths(expect_problem(hand_over(wire, content), 422)) == ["artifact"]
    assert (wire.policy("net")["version"], wire.policy("net")["staged"]) == (0, None)


def sealed(content: bytes) -> bytes:
    """As the codec does it, of whatever content."""
    return codec.MAGIC + hashlib.sha256(content).digest() + content


@pytest.mark.process
@pytest.mark.no_cover  # what measures coverage allocates as well
def test_a_compressed_artifact_is_refused_before_it_takes_memory(wire: Wire) -> None:
    """50 MB of zeros in 50 kB, beside a version that fits."""
    wire.teach(4, "net")
    meta, arrays = codec.unpack(artifact(wire), SNAPSHOT_SCHEMA)
    text = np.frombuffer(codec.text_of(SNAPSHOT_SCHEMA, meta), np.uint8)
    body = io.BytesIO()
    members: dict[str, Any] = {"meta": text, **arrays, "more": np.zeros(6_250_000)}
    np.savez_compressed(body, **members)
    assert len(body.getvalue()) < 60_000
    tracemalloc.start()
    try:
        problem = expect_problem(hand_over(wire, sealed(body.getvalue())), 422)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert paths(problem) == ["artifact"]
    assert "compressed" in problem["detail"]
    assert peak < 10e6


def test_no_array_is_made_by_its_own_word_and_no_long_directory_is_read(wire: Wire) -> None:
    wire.teach(4, "net")
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as file:
        for number in range(25_000):
            file.writestr(str(number), b"")
    problem = expect_problem(hand_over(wire, sealed(many.getvalue())), 422)
    assert "directory" in problem["detail"]
    for shape in (10**12,), (10**30,), (-1,), (2**32, 2**32):
        member, large = io.BytesIO(), io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        with zipfile.ZipFile(large, "w") as file:
            file.writestr("meta.npy", member.getvalue())
        expect_problem(hand_over(wire, sealed(large.getvalue())), 422)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (8, b"\x01"),  # encrypted
        (10, b"\x4d"),  # compressed in an unknown way
        (24, b"\xff\xff\xff\x7f"),  # larger than the whole
    ],
)
def test_a_member_that_cannot_be_read_as_it_is_is_refused(
    wire: Wire, offset: int, value: bytes
) -> None:
    wire.teach(4, "net")
    content = bytearray(artifact(wire)[len(codec.MAGIC) + 32 :])
    place = content.index(b"PK\x01\x02") + offset
    content[place : place + len(value)] = value
    expect_problem(hand_over(wire, sealed(bytes(content))), 422)


def test_a_second_directory_is_refused(wire: Wire) -> None:
    """A directory of zip64 would have its own size."""
    content = artifact(wire)[len(codec.MAGIC) + 32 :]
    zip64 = b"PK\x06\x07" + bytes(16)
    problem = expect_problem(hand_over(wire, sealed(content[:-22] + zip64 + content[-22:])), 422)
    assert "directory" in problem["detail"]


@pytest.mark.parametrize("place", ["net.weight0", "net.weight1", "output.weight", "head.b"])
@pytest.mark.parametrize(
    "size",
    [1e100, np.nan, *(pytest.param(n, marks=pytest.mark.slow) for n in (1e9, 1e300, np.inf))],
)
def test_what_would_break_every_later_fold_is_not_staged(
    wire: Wire, place: str, size: float
) -> None:
    """Told by rows as the log has them: one of zeros makes nothing of such weights."""
    wire.teach(4, "net")
    meta, arrays = codec.unpack(artifact(wire), SNAPSHOT_SCHEMA)
    arrays[place] = np.full_like(arrays[place], size)
    problem = expect_problem(hand_over(wire, pack_artifact(meta, arrays)), 422)
    assert paths(problem) == ["artifact"]
    assert wire.policy("net")["staged"] is None
    assert hand_over(wire, artifact(wire)).status_code == 202


def test_a_net_that_tells_no_rows_apart_is_not_staged(wire: Wire) -> None:
    """Every unit of its first layer is dead: its features are those of the biases."""
    for age in range(16):
        wire.reward(wire.select(policy="net", context={"persona": "cat", "age": age}), age % 2)
    meta, arrays = codec.unpack(artifact(wire), SNAPSHOT_SCHEMA)
    dead = arrays | {"net.weight0": 0 * arrays["net.weight0"], "net.bias1": np.ones(2)}
    problem = expect_problem(hand_over(wire, pack_artifact(meta, dead)), 422)
    assert "16 different rows" in problem["detail"]
    assert hand_over(wire, artifact(wire)).status_code == 202


def test_rows_that_somebody_sent_to_prevent_it_do_not_keep_a_version_out(wire: Wire) -> None:
    """A third of the settlements are of features a million times too large."""
    wire.teach(8, "net")
    for _ in range(4):
        odd = wire.select(policy="net", context={"persona": "cat", "age": 9e9})
        wire.reward(odd, 1.0)
    assert hand_over(wire, artifact(wire)).status_code == 202


def test_a_policy_without_a_net_takes_no_version(wire: Wire) -> None:
    """A fitting version would put another head in place of what the rewards made."""
    wire.teach()
    learner = wire.services.log.replicas.states["shop"].learners["linucb"]
    version = learner.version(1, Encoder())
    version.trained_to = 1
    for content in (pack_artifact(*learner.describe(version)), artifact(wire)):
        answer = hand_over(wire, content, policy="linucb")
        assert paths(expect_problem(answer, 422)) == ["policy"]
    status = wire.policy("linucb")
    assert (status["version"], status["head"]["effective_count"]) == (0, 1)


def test_an_artifact_has_a_bound_of_its_own() -> None:
    with serving(max_body_bytes=2_000, max_artifact_bytes=10_000) as wire:
        wire.redefine(policies={"net": NET})
        wire.teach(4, "net")
        expect_problem(hand_over(wire, b"x" * 10_001), 413)
        assert 2_000 < len(content := artifact(wire)) < 10_000
        assert hand_over(wire, content).status_code == 202


def test_settings_that_keep_the_head_keep_its_version(wire: Wire) -> None:
    wire.teach(4, "net")
    hand_over(wire, artifact(wire))
    activated(wire)
    before = wire.policy("net")["versions"]
    wire.redefine(policies={"net": {**NET, "alpha": 0.5}})
    assert wire.policy("net")["versions"] == before != []
    wire.redefine(policies={"net": {**NET, "hidden": [4]}})
    assert wire.policy("net")["version"] == 0


class Patchy(MemoryStore):
    """failures: so many reads fail after the arrival of an artifact."""

    failures = after_an_artifact = 0

    async def put(self, experiment: str, item: Item) -> None:
        await super().put(experiment, item)
        if isinstance(item, Blob):
            self.failures = self.after_an_artifact

    async def read(self, experiment: str, after: int, limit: int) -> list[Record]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("connection reset")
        return await super().read(experiment, after, limit)


def test_a_version_that_could_not_catch_up_is_caught_up_once_the_log_is_back() -> None:
    store = Patchy()
    with serving(store) as wire:
        wire.redefine(policies={"net": NET})
        wire.teach(4, "net")
        content = artifact(wire)
        wire.teach(1, "net")
        store.after_an_artifact = 2
        expect_problem(hand_over(wire, content), 503)
        wire.sleep(3 * RETRY_SECONDS)
        wire.until(lambda: wire.policy("net")["version"] == 1)
        assert wire.policy("net")["head"]["effective_count"] == 1


def seen(wire: Wire) -> GateSums:
    challenger = wire.services.log.replicas.states["shop"].learners["net"].challenger
    assert challenger is not None
    return challenger.seen


def end_gate(wire: Wire, sign: float) -> None:
    """Let the gate see a version that is better or worse by half of the range, and then a
    reward."""
    while seen(wire).outcome is None:
        seen(wire).add(0.5 + sign * 0.25, 0.5 - sign * 0.25)
    wire.teach(1, "net")
    activated(wire)


def listed(wire: Wire) -> list[dict[str, Any]]:
    found = wire.get(VERSIONS)
    assert found.status_code == 200
    versions: list[dict[str, Any]] = found.json()["versions"]
    return versions


def test_a_trained_version_waits_at_its_gate_and_learns(wire: Wire) -> None:
    wire.teach(4, "net")
    content = artifact(wire, training=REPORT)
    assert hand_over(wire, content).status_code == 202
    wire.teach(3, "net")
    status = wire.policy("net")
    assert (status["version"], status["staged"]) == (0, 1)
    assert (status["training_due"], status["training_due_at"]) == (False, 8)
    assert seen(wire).settlements == 3
    problem = expect_problem(hand_over(wire, artifact(wire, number=2)), 409)
    assert problem["detail"] == "version 1 is still compared with the one that serves"
    [waits] = listed(wire)
    assert (waits["version"], waits["state"], waits["served_from"]) == (1, "challenger", None)
    assert (waits["rewards"], waits["seconds"], waits["of"]) == (4, 1.5, None)
    assert (waits["validation_loss"], waits["ridge_loss"]) == (0.5, 0.75)
    assert (waits["gate"]["settlements"], waits["reason"]) == (3, "")
    assert waits["artifact"] == hashlib.sha256(content).hexdigest()
    end_gate(wire, 1.0)
    [serves] = listed(wire)
    assert (serves["state"], serves["served_until"], serves["settled"]) == ("serving", None, 0)
    assert serves["served_from_position"] == wire.policy("net")["versions"][-1]["position"]
    assert serves["reason"].startswith("Version 1 serves: over ")
    assert serves["gate"]["low"] > 0
    wire.reward(wire.select(policy="net"), 1.0)
    wire.reward(wire.select(policy="net"), 0.0)
    [serves] = listed(wire)
    assert (serves["settled"], serves["mean_reward"]) == (2, 0.5)
    low, high = serves["mean_reward_interval"]
    assert 0 <= low < 0.5 < high <= 1


def test_a_version_that_its_gate_rejects_never_serves(wire: Wire) -> None:
    wire.teach(4, "net")
    hand_over(wire, artifact(wire, training=REPORT))
    end_gate(wire, -1.0)
    status = wire.policy("net")
    assert (status["version"], status["versions"], status["training_due_at"]) == (0, [], 8)
    [rejected] = listed(wire)
    assert (rejected["state"], rejected["served_from"]) == ("rejected", None)
    assert rejected["reason"].startswith("Version 1 was rejected: over ")
    changes = wire.get("/experiments/shop/changes").json()["changes"]
    assert changes[0]["kind"] == "version_rejected"
    assert changes[0]["by"] == "automatic"
    assert rejected["reason"] in changes[0]["sentence"]
    assert hand_over(wire, artifact(wire, number=2)).status_code == 202


@pytest.mark.parametrize("report", [{}, "long", {**REPORT, "seconds": "long"}, {**REPORT, "x": 1}])
def test_a_report_that_cannot_be_read_is_refused(wire: Wire, report: object) -> None:
    wire.teach(4, "net")
    problem = expect_problem(hand_over(wire, artifact(wire, training=report)), 422)
    assert paths(problem) == ["artifact"]
    assert listed(wire) == []


def go_back(wire: Wire, version: int | str) -> Any:
    return wire.post(f"{VERSIONS}/{version}/activate")


def two_versions(wire: Wire) -> None:
    """The first is retired, the second serves."""
    wire.teach(4, "net")
    for number in (1, 2):
        assert hand_over(wire, artifact(wire, number=number)).status_code == 202
        activated(wire)


def test_an_earlier_version_serves_again_as_the_next_one_with_all_rewards(wire: Wire) -> None:
    two_versions(wire)
    wire.teach(2, "net")
    answer = go_back(wire, 1)
    assert (answer.status_code, answer.json()) == (202, {"version": 3})
    activated(wire)
    status = wire.policy("net")
    assert (status["version"], status["head"]["effective_count"]) == (3, 6)
    third, second, first = listed(wire)
    assert [each["state"] for each in (third, second, first)] == ["serving", "retired", "retired"]
    assert (third["of"], third["gate"], third["rewards"]) == (1, None, first["rewards"])
    assert second["served_until"] == third["served_from"]
    assert second["settled"] == 2
    learner = wire.services.log.replicas.states["shop"].learners["net"]
    weight, _ = learner.active.encoder.trained.layers[0]  # type: ignore[union-attr]
    assert np.array_equal(weight, np.full(weight.shape, 0.25))


def test_a_version_that_cannot_serve_again_says_why(wire: Wire) -> None:
    two_versions(wire)
    assert expect_problem(go_back(wire, 2), 409)["detail"] == "version 2 serves already"
    expect_problem(go_back(wire, 3), 404)
    for odd in ("0", "x"):
        expect_problem(go_back(wire, odd), 422)
    expect_problem(wire.post("/experiments/shop/policies/best/versions/1/activate"), 404)
    wire.teach(2, "net")
    hand_over(wire, artifact(wire, number=3, training=REPORT))
    assert "waits at its gate" in expect_problem(go_back(wire, 3), 409)["detail"]
    assert "version 3 is still" in expect_problem(go_back(wire, 1), 409)["detail"]
    end_gate(wire, -1.0)
    first = listed(wire)[-1]["artifact"]
    wire.run(wire.services.store.erase("shop", Erasure(blobs=[first])))
    assert "its artifact is gone" in expect_problem(go_back(wire, 1), 409)["detail"]
    assert go_back(wire, 3).status_code == 202  # the rejected one, if somebody wants it
    activated(wire)
    wire.redefine(policies={"net": {**NET, "hidden": [4]}, "linucb": {"kind": "linucb"}})
    assert [each["state"] for each in listed(wire)] == ["retired", "rejected", *["retired"] * 2]
    assert "started anew" in expect_problem(go_back(wire, 2), 409)["detail"]


def test_a_version_cannot_serve_again_on_a_log_that_was_trimmed(wire: Wire) -> None:
    two_versions(wire)
    replica = wire.services.log.replicas.by_name["shop"]
    origin = wire.run(wire.services.log.snapshots.save_origin(replica))
    wire.run(wire.services.store.trim("shop", Trim(origin, 0, 0.0), 1_000))
    detail = expect_problem(go_back(wire, 1), 409)["detail"]
    assert "the log no longer holds the beginning of net's head" in detail
