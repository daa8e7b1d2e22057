"""A policy at work: its versions, its head, and the two things done with them, score and learn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from service.events import Learned, Outcome, outcomes
from service.experiment import Definition
from service.features import Array, Schema, View
from service.networks import Network, cold_network
from service.policies.rules import Scores
from service.policies.settings import AnyPolicy, Featured
from service.policies.settings import Network as NetworkSettings
from service.policies.table import FAMILIES
from service.posterior import Bank, Head

HISTORY = 100
"""Activated versions that are remembered for display."""

COLD_SHARE = 2.0
"""Size of the random features beside the trained ones in a head (whose mean square is 1). They keep
every arm's row apart, so that a net trained on few arms cannot make the others look alike and
certain. Zooplus, nine raw features, 20,000 visits, 5 streams: .4980 (worst .4794) with 0.5, .5045
(worst .5037) with 2."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The arms of one request: ids and encoded features, one row each."""

    ids: Sequence[str]
    x: Array  # (K, arm.width)
    _distinct: dict[View, tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {arm: row for row, arm in enumerate(self.ids)}

    def distinct(self, view: View) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Indexes of arms that a view tells apart (U,), and which of them each arm is like (K,)."""
        found = self._distinct.get(view)
        if found is None:
            columns = self.x[:, view.arm_columns]
            if columns.shape[1]:
                _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
                found = first, of.reshape(-1)
            else:
                found = np.zeros(1, np.intp), np.zeros(len(self.ids), np.intp)
            self._distinct[view] = found
        return found


@dataclass(frozen=True)
class Encoder:
    """What a view's rows become before the head: themselves, or the features of a net.

    trained   fitted by the trainer; None before the first training
    output    (w, b) of the trained net's last layer, a column an output: g = f(x) w + b
    outputs   the arm of each column, where the net has one an arm
    """

    cold: Network | None = None
    trained: Network | None = None
    output: tuple[Array, Array] | None = None
    outputs: Sequence[str] = ()

    def width(self, rows: int) -> int:
        if self.cold is None:
            return rows
        return self.cold.width + (self.trained.width if self.trained else 0) + 1

    def __call__(self, rows: Array) -> Array:  # (n, view.width) -> (n, m)
        if self.cold is None:
            return rows
        parts = [self.trained(rows)] if self.trained else []
        return np.hstack([*parts, COLD_SHARE * self.cold(rows), np.ones((len(rows), 1))])

    def predict(self, phi: Array) -> Array:  # (n, m) -> (n,)
        """The trained net's own output g(x; theta); 0 before the first training."""
        if self.trained is None or self.output is None:
            return np.zeros(len(phi))
        weight, bias = self.output
        return (phi[:, : self.trained.width] @ weight + bias)[:, 0]


@dataclass
class Version:
    """An encoder, the head in its features, and the log position the head was rebuilt to.

    rewards   the policy's rewards at that position: what the next training's due count grows from
    begins    the head holds no outcome that was settled first before this log position: a
              correction of one has the weight 0
    """

    number: int
    encoder: Encoder
    head: Head | None
    bank: Bank
    trained_to: int = 0
    rewards: int = 0
    begins: int = 0


@dataclass
class Staged:
    """A version on its way: folded up to `folded_to`, serving nothing yet."""

    version: Version
    folded_to: int


class Learner:
    """One policy of one experiment: configuration, versions and counts. Changed by the fold alone.

    born   revision of the experiment at which its head started from the prior
    """

    def __init__(
        self,
        experiment: str,
        name: str,
        settings: AnyPolicy,
        definition: Definition,
        schema: Schema,
        born: int,
        begins: int = 0,
    ) -> None:
        self.name, self.settings, self.born = name, settings, born
        self.family = FAMILIES[settings.kind]
        self._experiment = experiment
        names = definition.features_of(settings) if isinstance(settings, Featured) else []
        self.view = View(schema, names)
        self.disjoint = bool(getattr(settings, "disjoint", False))
        self.rewards = 0
        self.active = self.version(0, self._cold_encoder(), begins=begins)
        self.staged: Staged | None = None
        self.history: list[dict[str, Any]] = []

    def configure(self, settings: AnyPolicy, position: int) -> None:
        """Settings that leave the head as it is (`fold.HEADLESS`), from this position on.

        A head that learns again missed what came while it was frozen: it takes corrections only of
        what it learns from here.
        """
        if settings.learning and not self.settings.learning:
            self.active.begins = position
        self.settings = settings
        for version in [self.active, *([self.staged.version] if self.staged else [])]:
            version.bank = self._bank(version.number)

    def _bank(self, number: int) -> Bank:
        settings: Any = self.settings
        key = f"{self._experiment}\0{self.name}\0{number}\0{getattr(settings, 'bank', 0)}"
        return Bank(getattr(settings, "draws", 1), key)

    def _cold_encoder(self) -> Encoder:
        if not isinstance(self.settings, NetworkSettings):
            return Encoder()
        sizes = [self.view.width, *self.settings.hidden, self.settings.embedding]
        return Encoder(cold_network(sizes, self.name))

    def version(
        self,
        number: int,
        encoder: Encoder,
        head_arrays: Mapping[str, npt.NDArray[Any]] | None = None,
        trained_to: int = 0,
        rewards: int = 0,
        begins: int = 0,
    ) -> Version:
        """A version with an empty head, or with one restored from its arrays."""
        make = self.family.head
        head = make(self.settings, encoder.width(self.view.width)) if make else None
        if head is not None and head_arrays is not None:
            head.restore(dict(head_arrays))
        return Version(number, encoder, head, self._bank(number), trained_to, rewards, begins)

    def trained(
        self, network: Network, output: tuple[Array, Array], outputs: Sequence[str] = ()
    ) -> Encoder:
        """An encoder with a fitted net beside this policy's cold one."""
        return Encoder(self._cold_encoder().cold, network, output, outputs)

    # -- score ---------------------------------------------------------------------------------

    def score(self, context: Array, candidates: Candidates) -> Scores:
        """Scores of the distinct candidates under the active version."""
        version = self.active
        ids = candidates.ids
        if version.head is None:
            return Scores(np.zeros((1, 1)), np.zeros(len(ids), np.intp))
        first, of = self._distinct(candidates)
        rows = self.view.design(context[None], candidates.x[first])
        phi = version.encoder(rows)
        table = self.family.rule(
            version.head, phi, [ids[index] for index in first], self.settings, version.bank
        )
        if self.family.predicts:
            table = table + version.encoder.predict(phi)
        return Scores(table, of)

    def _distinct(
        self, candidates: Candidates
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        if self.per_arm:
            every = np.arange(len(candidates.ids))
            return every, every
        return candidates.distinct(self.view)

    @cached_property
    def per_arm(self) -> bool:
        """Arms of equal features are told apart by their ids."""
        return self.disjoint or not isinstance(self.settings, Featured)

    def explain(self, context: Array, candidates: Candidates) -> list[dict[str, float]]:
        """Mean and posterior width of each candidate under the active version."""
        version = self.active
        if version.head is None:
            return [{} for _ in candidates.ids]
        rows = self.view.design(context[None], candidates.x)
        phi = version.encoder(rows)
        mean = version.head.mean(phi, candidates.ids)
        if self.family.predicts:
            mean = mean + version.encoder.predict(phi)
        width = version.head.width(phi, candidates.ids)
        return [{"mean": float(m), "width": float(w)} for m, w in zip(mean, width, strict=True)]

    # -- learn ---------------------------------------------------------------------------------

    def learns_from(self, policy: str) -> bool:
        return policy == self.name or self.settings.learns_from == "all"

    def outcomes(self, event: Learned) -> list[Outcome]:
        """What this policy learns from an event.

        An arm outside the catalogue gets no head of its own.
        """
        if not self.learns_from(event.policy):
            return []
        return [one for one in outcomes(event) if not (one.settled.inline and self.per_arm)]

    def fold(self, position: int, event: Learned) -> None:
        """One event's outcomes, at its log position.

        A staged version learns whatever the settings say: how far it had caught up when they
        changed differs from process to process, and its head must not.
        """
        self.rewards += sum(one.was is None for one in self.outcomes(event))
        if self.settings.learning:
            self.fold_into(self.active, event)
        if self.staged and self.staged.folded_to == position - 1:
            self.fold_into(self.staged.version, event)

    def fold_into(self, version: Version, event: Learned) -> None:
        """Move one version's head by an event's outcomes."""
        for outcome in self.outcomes(event):
            self.observe(version, outcome)

    def observe(self, version: Version, outcome: Outcome) -> None:
        """Move one version's head by one outcome."""
        settled, was, since = outcome
        if version.head is None or (since is not None and since < version.begins):
            return
        phi = version.encoder(self.view.rows(np.array([settled.x])))
        mean = float(version.encoder.predict(phi)[0]) if self.family.predicts else 0.0
        if was is None:
            version.head.observe(settled.arm, phi[0], settled.reward - mean)
        else:
            version.head.revise(settled.arm, phi[0], was - mean, settled.reward - mean)

    def activate(self, position: int, at: float) -> None:
        """The staged version serves from here."""
        assert self.staged is not None
        self.active, self.staged = self.staged.version, None
        self.history.append(
            {
                "version": self.active.number,
                "watermark": self.active.trained_to,
                "position": position,
                "at": at,
            }
        )
        del self.history[:-HISTORY]

    # -- training ------------------------------------------------------------------------------

    @property
    def training_due_at(self) -> int | None:
        """The count of rewards at which the next training falls due; None: never trained."""
        if not isinstance(self.settings, NetworkSettings) or not self.settings.learning:
            return None
        training = self.settings.training
        if self.active.number == 0:
            return training.first
        return ceil(self.active.rewards * training.growth)

    @property
    def next_version(self) -> tuple[int, int]:
        """(born, number): what fences off a trainer that worked from an older definition."""
        return self.born, self.active.number + 1

    @property
    def training_due(self) -> bool:
        due = self.training_due_at
        return due is not None and self.rewards >= due

    # -- snapshots -----------------------------------------------------------------------------

    def describe(self, version: Version) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Meta and arrays of a version: what snapshots and the trainer's artifacts hold."""
        encoder = version.encoder
        meta = {
            "born": self.born,
            "version": version.number,
            "trained_to": version.trained_to,
            "version_rewards": version.rewards,
            "begins": version.begins,
            "outputs": list(encoder.outputs),
        }
        arrays: dict[str, npt.NDArray[Any]] = {}
        if encoder.trained and encoder.output:
            arrays |= {f"net.{name}": array for name, array in encoder.trained.arrays().items()}
            arrays["output.weight"], arrays["output.bias"] = encoder.output
        if version.head is not None:
            arrays |= {f"head.{name}": array for name, array in version.head.arrays().items()}
        return meta, arrays

    def restored(self, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Version:
        """The inverse of `describe`. Raises KeyError or ValueError where it is no such version."""
        encoder = self._cold_encoder()
        network = {name[4:]: a for name, a in arrays.items() if name.startswith("net.")}
        if network:
            output = arrays["output.weight"], arrays["output.bias"]
            encoder = self.trained(Network.from_arrays(network), output, meta["outputs"])
        head = {name[5:]: a for name, a in arrays.items() if name.startswith("head.")}
        return self.version(
            int(meta["version"]),
            encoder,
            head or None,
            int(meta["trained_to"]),
            int(meta["version_rewards"]),
            int(meta["begins"]),
        )

    def dump(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """All that the fold has changed; nothing is staged while this is taken."""
        meta, arrays = self.describe(self.active)
        return {**meta, "rewards": self.rewards, "history": self.history}, arrays

    def load(self, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `dump`, bit for bit."""
        self.born = int(meta["born"])
        self.rewards, self.history = int(meta["rewards"]), list(meta["history"])
        self.active = self.restored(meta, arrays)
