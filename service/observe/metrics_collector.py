"""Gauges of a process and of the states that it folds, computed at each scrape."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.bandits.version import WIDE
from service.clock import SYSTEM, Clock
from service.log.log import Log
from service.state.fold import State
from service.state.footprint import footprint_of
from service.state.learner import Learner
from service.telemetry.metrics import Telemetry

GaugeRow = tuple[str, tuple[str, ...], float]
"""Name of a gauge, the values of its labels, and its value."""

PROCESS = {
    "forage_processes": "Live replicas of this log known to this process.",
    "forage_log_queue_entries": "Entries that wait for the next commit of the log.",
    "forage_buffered_decisions": "Answered decisions in memory that are not logged yet.",
    "forage_buffer_seconds": "Seconds of a log outage that the buffer can bridge at present rates.",
    "forage_follow_lag_seconds": "Seconds since this process last read a shared log to its end.",
    "forage_store_bytes": "Bytes of the store, as last measured by the process that leads.",
    "forage_store_limit_bytes": "Limit of the store's bytes.",
    "forage_store_clock_skew_seconds": "Host clock minus store clock at the last commit.",
}
OWN_EXPERIMENT = {
    "forage_log_bytes": "Estimated bytes of its rows, events and marks in the store.",
    "forage_log_rows": "Decision rows in the store.",
    "forage_log_losses_total": "Losses of folded events; the log was folded anew after each.",
    "forage_quarantined": "1 while the experiment is not served, as its log cannot be folded.",
    "forage_snapshot_age_seconds": "Seconds since the last snapshot.",
    "forage_sample_ratio_mismatch": "1 if the log does not match its probabilities.",
}
EXPERIMENT = {
    "forage_log_position": "Events folded.",
    "forage_experiment_memory_bytes": "Estimated memory of its heads, nets and arms.",
    "forage_rollout_rollbacks_total": "Rollouts that gave the traffic back to their baseline.",
    "forage_budget_learner_share": "Share that a loss budget leaves to all other policies.",
    "forage_publication_age_seconds": "Age of what a decider decides by, at most; 0 at a learner.",
    "forage_snapshot_lag_ratio": "Events since the last snapshot, as a share of those between two.",
}
OWN_POLICY = {
    "forage_propensity_minimum": "Smallest propensity of a shown arm since the start.",
}
POLICY = {
    "forage_policy_share": "Share of the traffic that names no policy.",
    "forage_rollout_stage": "Stage of its latest rollout, from 1; 0 if that was rolled back.",
    "forage_rollout_waits": "1 while its rollout waits for a person to decide.",
    "forage_policy_explores": "1 if the policy explores, 0 if it always takes the best arm.",
    "forage_reward_mean": "Mean of all settled rewards.",
    "forage_reward_recent_mean": "Mean of the last rewards, about 500.",
    "forage_reward_extreme_ratio": "Largest size of the recent rewards over their median.",
    "forage_reward_shift_sigmas": "Recent minus long-run mean reward, in standard errors.",
    "forage_calibration_error_ratio": "Error of predicted means, as a share of the range.",
    "forage_calibration_ratio": "Sum of predicted over sum of observed rewards.",
    "forage_prediction_bias_sigmas": "Predicted minus observed reward, in standard errors.",
    "forage_selection_entropy_nats": "Running mean of the entropy of a choice.",
    "forage_head_smallest_eigenvalue": "Smallest eigenvalue of the precision matrix A.",
    "forage_head_effective_rank": "Effective number of directions that rewards came from.",
    "forage_head_condition_number": "Largest over smallest eigenvalue of A.",
    "forage_model_version": "Number of the serving version; 0 is untrained.",
    "forage_trained_to_position": "Log position up to which the version was trained.",
    "forage_training_overdue_seconds": "Seconds since a training fell due; 0 while none is.",
}
GUARDRAIL = {
    "forage_rollout_guardrail_breached": "1 while a rollout breaches the guardrail.",
}
OWN_FEATURE = {
    "forage_clipped_values_total": "Values of a feature beyond its clip.",
}
FEATURE = {
    "forage_context_stability_index": "Population stability index of the latest contexts.",
}


class ProcessGauges(Collector):
    """What a process knows alone: the workers of a service have it each, and `together` once."""

    def __init__(self, log: Log, telemetry: Telemetry) -> None:
        self._log, self._telemetry = log, telemetry

    def collect(self) -> Iterator[Metric]:
        states = self._log.replicas.states
        yield from _families(PROCESS, (), self._process())
        yield from _families(OWN_EXPERIMENT, ("experiment",), self._experiments(states))
        yield from _families(OWN_POLICY, ("experiment", "policy"), self._policies(states))
        labels = "experiment", "policy", "guardrail"
        yield from _families(GUARDRAIL, labels, self._guardrails(states))
        yield from _families(OWN_FEATURE, ("experiment", "feature"), self._features(states))

    def _process(self) -> Iterator[GaugeRow]:
        log = self._log
        yield "forage_processes", (), float(log.presence.count)
        yield "forage_log_queue_entries", (), float(log.committer.queued)
        yield "forage_buffered_decisions", (), float(log.committer.buffered)
        yield "forage_buffer_seconds", (), log.committer.buffer_seconds
        if log.folds:
            yield "forage_follow_lag_seconds", (), log.lag_seconds or 0.0
        if sizes := self._telemetry.log_sizes:
            yield "forage_store_bytes", (), float(sizes.used)
            if sizes.limit is not None:
                yield "forage_store_limit_bytes", (), float(sizes.limit)
        yield "forage_store_clock_skew_seconds", (), log.clock_skew_seconds or 0.0

    def _experiments(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        quarantined = self._log.replicas.quarantined
        for name in {**states, **quarantined}:
            yield "forage_quarantined", (name,), float(name in quarantined)
            losses = self._log.replicas.by_name[name].losses
            yield "forage_log_losses_total", (name,), float(losses)
        if sizes := self._telemetry.log_sizes:
            for gauge, values in (("bytes", sizes.bytes), ("rows", sizes.rows)):
                for name in values.keys() & states.keys():
                    yield f"forage_log_{gauge}", (name,), float(values[name])
        for name in states:
            age = self._telemetry.snapshot_age(name)
            if age is not None:
                yield "forage_snapshot_age_seconds", (name,), age
            if name in self._telemetry.mismatched:
                wrong = float(self._telemetry.mismatched[name])
                yield "forage_sample_ratio_mismatch", (name,), wrong

    def _policies(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for key, watch in self._telemetry.decision_statistics.items():
            if key[0] in states:
                yield "forage_propensity_minimum", key, watch.minimum

    def _guardrails(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for (name, policy), (position, found) in self._telemetry.breached.items():
            rollout = states[name].traffic.rollout_of(policy) if name in states else None
            if rollout is not None and rollout.position == position:
                for guardrail, breached in found.items():
                    key = name, policy, guardrail
                    yield "forage_rollout_guardrail_breached", key, float(breached)

    def _features(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for name, state in states.items():
            for feature, count in state.schema.clipped.items():
                yield "forage_clipped_values_total", (name, feature), float(count)


class StateGauges(Collector):
    """What the states say, in each process alike, with the drift that this process has seen.

    It remembers since when a training has been due.
    """

    def __init__(self, log: Log, telemetry: Telemetry, clock: Clock = SYSTEM) -> None:
        self._log, self._telemetry, self._clock = log, telemetry, clock
        self._due_since: dict[tuple[str, str], tuple[tuple[int, int], float]] = {}

    def collect(self) -> Iterator[Metric]:
        states = self._log.replicas.states
        self._due_since = {
            (name, policy): due
            for (name, policy), due in self._due_since.items()
            if name in states and policy in states[name].learners
        }
        yield from _families(EXPERIMENT, ("experiment",), self._experiments(states))
        yield from _families(POLICY, ("experiment", "policy"), self._policies(states))
        yield from _families(FEATURE, ("experiment", "feature"), self._features(states))

    def _experiments(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for name, state in states.items():
            yield "forage_log_position", (name,), float(state.position)
            taken = sum(footprint_of(state).values())
            yield "forage_experiment_memory_bytes", (name,), float(taken)
            yield "forage_rollout_rollbacks_total", (name,), float(state.traffic.rollbacks)
            if budget := state.traffic.budget:
                yield "forage_budget_learner_share", (name,), budget.share
            age = 0.0 if self._log.folds else self._log.age_seconds(name)
            yield "forage_publication_age_seconds", (name,), age
            if not self._log.folds:
                continue
            behind = state.position - self._log.replicas.by_name[name].snapshot_position
            every = self._log.snapshots.interval_events(state)
            yield "forage_snapshot_lag_ratio", (name,), behind / every

    def _policies(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for name, state in states.items():
            for policy, learner in state.learners.items():
                key = name, policy
                for gauge, value in self._policy(state, learner):
                    yield gauge, key, float(value)

    def _policy(self, state: State, learner: Learner) -> Iterator[tuple[str, float]]:
        key, version = (state.name, learner.name), learner.active
        yield "forage_policy_share", state.traffic.chance(learner.name)
        if rollout := state.traffic.rollouts.get(learner.name):
            yield "forage_rollout_stage", rollout.stage + 1 if rollout.share else 0
            yield "forage_rollout_waits", rollout.waits
        yield "forage_policy_explores", explores(learner)
        if watch := self._telemetry.decision_statistics.get(key):
            yield "forage_selection_entropy_nats", watch.entropy
        yield "forage_model_version", version.number
        if not self._log.folds:
            return  # the rest is of what only learners know
        tally = state.reward_sums[learner.name]
        if tally.count:
            yield "forage_reward_mean", tally.total / tally.count
        yield from self._drift(state, learner.name)
        # `GET /policies` has a wider head's spectrum: a scrape holds the event loop.
        if version.columns <= WIDE and (health := version.health()):
            yield "forage_head_smallest_eigenvalue", health.smallest_eigenvalue
            yield "forage_head_effective_rank", health.effective_rank
            yield "forage_head_condition_number", health.condition_number
        yield "forage_trained_to_position", version.trained_to
        if learner.policy.net is not None:
            yield "forage_training_overdue_seconds", self._overdue(key, learner)

    def _drift(self, state: State, policy: str) -> Iterator[tuple[str, float]]:
        drift, rules = self._telemetry.drift, state.definition.reward
        if rewards := drift.rewards(state, policy):
            yield "forage_reward_recent_mean", rewards.recent
            shift = rewards.shift(rules)
            if shift is not None:
                yield "forage_reward_shift_sigmas", shift
        sizes = drift.reward_sizes(state, policy)
        if sizes is not None and sizes.ratio is not None:
            yield "forage_reward_extreme_ratio", sizes.ratio
        if found := drift.predictions(state, policy):
            yield "forage_calibration_error_ratio", found.error
            yield "forage_prediction_bias_sigmas", found.bias
            if found.ratio is not None:
                yield "forage_calibration_ratio", found.ratio

    def _overdue(self, key: tuple[str, str], learner: Learner) -> float:
        """Since the first scrape at which this training was due."""
        if not learner.training_due:
            self._due_since.pop(key, None)
            return 0.0
        known = self._due_since.get(key)
        if known is None or known[0] != learner.next_version:
            known = self._due_since[key] = learner.next_version, self._clock.monotonic()
        return self._clock.monotonic() - known[1]

    def _features(self, states: dict[str, State]) -> Iterator[GaugeRow]:
        for name, state in states.items():
            for feature, index in self._telemetry.drift.context(state).items():
                yield "forage_context_stability_index", (name, feature), index


def explores(learner: Learner) -> bool:
    """Say whether chance decides more than ties."""
    return learner.settings.epsilon > 0 or learner.policy.rule.explores


def _families(
    texts: dict[str, str], labels: tuple[str, ...], rows: Iterable[GaugeRow]
) -> Iterable[Metric]:
    """Gauges, and counters where a name ends in `_total`."""
    families = {
        name: (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(
            name, text, labels=labels
        )
        for name, text in texts.items()
    }
    for name, key, value in rows:
        families[name].add_metric(key, value)
    return families.values()
