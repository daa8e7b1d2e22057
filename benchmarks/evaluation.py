"""Off-policy estimates on the Open Bandit sample beside the published ones.

python -m benchmarks.evaluation --data FOLDER [--prior prior_bts.yaml] [--runs 30]

The log of the uniform policy estimates what Bernoulli Thompson sampling ("bts") earned, which the
log of bts itself tells (42 clicks in 10,000). As in obp's example `evaluate_off_policy_estimators`:
30 bootstrap samples of the log (numpy's RandomState(run)), a logistic regression for each of the
three positions (C 1000), fitted crosswise in 3 folds, bts at the prior that ZOZOTOWN started it
with (`obp/policy/conf/prior_bts.yaml` of the package obp), and the mean of |estimate - truth| /
truth. Without --prior, the shares with which the log of bts shows each item at each position take
the place of its simulation.
"""

import argparse
import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from service.evaluation.estimators import (
    Logged,
    choose_threshold,
    direct,
    effective_size,
    switch,
    terms_of,
)

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

ITEMS, POSITIONS, FOLDS = 80, 3, 3
SIMULATIONS, CHUNK = 200_000, 10_000
SEED = 12_345
THRESHOLDS = (1.0, 5.0, 10.0)
PUBLISHED = {"DM": 0.157, "IPS": 0.311, "SNIPS": 0.312, "DR": 0.292, "Switch-DR": 0.258}
NAMED = {"ips": "IPS", "snips": "SNIPS", "dr": "DR"}


@dataclass(frozen=True)
class Log:
    """context: (n, m) the user's features, a column a value but the first of each."""

    context: Array
    item: Index
    position: Index
    click: Array
    propensity: Array

    def __getitem__(self, rows: Index) -> "Log":
        return Log(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def read_log(path: Path) -> Log:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = []
    for name in sorted(name for name in rows[0] if name.startswith("user_feature")):
        values = [row[name] for row in rows]
        for value in sorted(set(values))[1:]:
            columns.append([float(own == value) for own in values])  # noqa: PERF401
    return Log(
        np.array(columns).T,
        np.array([int(row["item_id"]) for row in rows]),
        np.array([int(row["position"]) - 1 for row in rows]),
        np.array([float(row["click"]) for row in rows]),
        np.array([float(row["propensity_score"]) for row in rows]),
    )


def read_items(path: Path) -> Array:  # (ITEMS, 4)
    """Categories as their numbers in order, then the number."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["item_id"]))
    columns = []
    for name in ("item_feature_1", "item_feature_2", "item_feature_3"):
        values = [row[name] for row in rows]
        order = sorted(set(values))
        columns.append([float(order.index(value)) for value in values])
    columns.append([float(row["item_feature_0"]) for row in rows])
    return np.array(columns).T


def simulated(prior: Path) -> Array:  # (ITEMS, POSITIONS)
    """The chance of each item at each position under bts with this prior."""
    import yaml

    content = yaml.safe_load(prior.read_text(encoding="utf-8"))["all"]
    alpha, beta = np.array(content["alpha"]), np.array(content["beta"])
    rng, counts = np.random.default_rng(SEED), np.zeros((ITEMS, POSITIONS))
    for _ in range(SIMULATIONS // CHUNK):
        top = np.argsort(-rng.beta(alpha, beta, (CHUNK, ITEMS)), axis=1)[:, :POSITIONS]
        for position in range(POSITIONS):
            counts[:, position] += np.bincount(top[:, position], minlength=ITEMS)
    return counts / SIMULATIONS


def observed(log: Log) -> Array:  # (ITEMS, POSITIONS)
    counts = np.zeros((ITEMS, POSITIONS))
    np.add.at(counts, (log.item, log.position), 1.0)
    return np.asarray(counts / counts.sum(axis=0))


def guesses(log: Log, items: Array) -> Array:  # (n, ITEMS), at each row's own position
    """Click chances by a regression that saw the other folds alone."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold

    found = np.empty((len(log.item), ITEMS))
    rows = np.hstack([log.context, items[log.item]])
    width = log.context.shape[1]
    folds = KFold(FOLDS, shuffle=True, random_state=SEED)
    for train, test in folds.split(rows):
        for position in range(POSITIONS):
            fitted = train[log.position[train] == position]
            asked = test[log.position[test] == position]
            if log.click[fitted].min() == log.click[fitted].max():
                found[asked] = log.click[fitted].mean()
                continue
            model = LogisticRegression(C=1_000, solver="newton-cholesky", max_iter=1_000)
            model.fit(rows[fitted], log.click[fitted])
            w, b = model.coef_[0], model.intercept_[0]
            by_user, by_item = log.context[asked] @ w[:width], items @ w[width:]
            found[asked] = 1 / (1 + np.exp(-(by_user[:, None] + by_item + b)))
    return found


def logged(log: Log, items: Array, chances: Array) -> Logged:
    guess, target = guesses(log, items), chances[:, log.position].T
    rows = np.arange(len(log.item))
    return Logged(
        reward=log.click,
        behaviour=log.propensity,
        target=target[rows, log.item],
        bound=target.max(axis=1) * ITEMS,
        guess=guess[rows, log.item],
        target_guess=(target * guess).sum(axis=1),
    )


def errors(log: Log, items: Array, chances: Array, truth: float) -> dict[str, float]:
    """Relative, of each estimator on one sample."""
    columns = logged(log, items, chances)
    values = {NAMED[name]: each.value for name, each in terms_of(columns).items() if name in NAMED}
    values["DM"] = direct(columns).value
    values["Switch-DR"] = switch(columns, choose_threshold(columns)).value
    for threshold in THRESHOLDS:
        values[f"Switch-DR ({threshold:g})"] = switch(columns, threshold).value
    return {name: abs(value - truth) / truth for name, value in values.items()}


def samples(log: Log, runs: int) -> Iterator[Log]:
    rows = len(log.item)
    for run in range(runs):
        drawn = np.random.RandomState(run).choice(np.arange(rows), size=rows, replace=True)
        yield log[drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--prior", type=Path, metavar="FILE")
    parser.add_argument("--runs", type=int, default=30)
    asked = parser.parse_args()
    log = read_log(asked.data / "random_all_all.csv.gz")
    other = read_log(asked.data / "bts_all_all.csv.gz")
    items = read_items(asked.data / "random_all_item_context.csv")
    truth = float(other.click.mean())
    chances = observed(other) if asked.prior is None else simulated(asked.prior)
    weight = chances[log.item, log.position] / log.propensity
    print(f"random earned {log.click.mean():.4f}, bts {truth:.4f}")
    print(f"effective sample size {effective_size(weight):,.0f}, largest weight {weight.max():.1f}")
    found = [errors(sample, items, chances, truth) for sample in samples(log, asked.runs)]
    print("estimator      relative error   std    published")
    for name in found[0]:
        values = np.array([each[name] for each in found])
        told = f"{PUBLISHED[name]:.3f}" if name in PUBLISHED else ""
        print(f"{name:<14} {values.mean():14.3f} {values.std(ddof=1):7.3f} {told:>9}")


if __name__ == "__main__":
    main()
