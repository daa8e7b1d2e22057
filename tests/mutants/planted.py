# ruff: noqa: E501 - lines of the service as they are
"""Bugs to plant in the service, one at a time: each breaks a promise as code under time pressure
might. A text of the source, which is there once, is replaced by another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STORES: Final = "service/log/stores"


class NotThere(Exception):
    """The text to replace is not in its file, or more than once: the source has changed."""


@dataclass(frozen=True)
class Edit:
    file: str
    old: str
    new: str

    def plant(self, tree: Path) -> None:
        """Raises NotThere."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise NotThere(f"{self.file}: {self.old!r} is there {count} times")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Mutant:
    """tests: files or folders that are concerned, the fastest first
    campaign: of chaos, the one where it would show"""

    name: str
    edits: Sequence[Edit]
    tests: Sequence[str]
    campaign: str = "sqlite"

    def plant(self, tree: Path) -> None:
        for edit in self.edits:
            edit.plant(tree)


MUTANTS: Final = (
    Mutant(
        "a decider goes back to an older position",
        [
            Edit(
                "service/state/publication.py",
                "if image is not None and _place(image) >= _place(self.state) and image.position:",
                "if image is not None and image.position:",
            ),
            Edit(
                "service/state/publication.py",
                "if heads.position > self.state.position:",
                "if heads.position:",
            ),
        ],
        ["tests/unit/test_publication.py", "tests/unit/test_deciders.py"],
    ),
    Mutant(
        "heads are put into another image than theirs",
        [
            Edit(
                "service/state/publication.py",
                "if heads.image != self._image or heads.base not in (0, self._heads):",
                "if heads.base not in (0, self._heads):",
            )
        ],
        ["tests/unit/test_publication.py"],
    ),
    Mutant(
        "arrays are published without the order of their memory",
        [
            Edit(
                "service/state/publication.py",
                '    data = array.tobytes(order="F" if fortran else "C")\n',
                "    fortran, data = False, array.tobytes()\n",
            )
        ],
        ["tests/unit/test_publication.py"],
    ),
    Mutant(
        "what is published tells decisions",
        [
            Edit(
                "service/state/publication.py",
                "make = state.capture(learning=False)",
                "make = state.capture()",
            )
        ],
        ["tests/unit/test_publication.py"],
    ),
    Mutant(
        "a decider relies on a part of a count before it is published",
        [
            Edit(
                "service/log/deciding.py",
                "        while self.state.position < position:\n",
                "        while False:\n",
            )
        ],
        ["tests/unit/test_deciders.py"],
    ),
    Mutant(
        "a decider forgets what it has shown before the counts are published",
        [
            Edit(
                "service/log/committer.py",
                "[decision for at, decision in known if at <= position]",
                "[decision for at, decision in known]",
            )
        ],
        ["tests/unit/test_deciders.py"],
    ),
    Mutant(
        "deciders lead",
        [
            Edit(
                "service/log/presence.py",
                'return sorted(name for name, role in self._alive.items() if role == "learner")',
                "return sorted(self._alive)",
            )
        ],
        ["tests/unit/test_deciders.py"],
    ),
    Mutant(
        "what the store has lost is not published again",
        [
            Edit(
                "service/log/publisher.py",
                "            if stamps.get(name) != edition.stamp:\n",
                "            if False:\n",
            )
        ],
        ["tests/unit/test_deciders.py"],
    ),
    Mutant(
        "a reward is acknowledged before its commit",
        [
            Edit(
                "service/settle/settlement.py",
                "        result = await self._log.committer.append(entry, event)\n"
                "        return None if isinstance(result, Appended) else result.marks\n",
                "        self._log.background.spawn(self._log.committer.append(entry, event))\n        return None\n",
            )
        ],
        ["tests/unit/test_settlement.py", "tests/http/test_reward.py"],
    ),
    Mutant(
        "no de-duplication",
        [
            Edit(
                f"{STORES}/redis_scripts.py",
                "  if refused then return known end\n",
                "",
            )
        ],
        ["tests/contract/test_stores.py", "tests/contract/test_decision_rows.py"],
        "redis",
    ),
    Mutant(
        "recovery skips the first event after a snapshot",
        [
            Edit(
                "service/log/replica.py",
                "            self.state.apply(position, event, version)\n",
                "            if self.recovered or position != self.snapshot_position + 1 or position == 1:\n"
                "                self.state.apply(position, event, version)\n"
                "            self.state.position = position\n",
            )
        ],
        ["tests/http/test_erasure.py"],
    ),
    Mutant(
        "another replica's events are not read",
        [
            Edit(
                "service/log/replica.py",
                "                    await self._fold_to_end()  # others wrote",
                "                    self.state.position = committed.position - 1\n"
                "                    await self.apply(committed.position, committed.event)  # others wrote",
            )
        ],
        ["tests/unit/test_log.py"],
        "redis",
    ),
    Mutant(
        "synchronous=OFF",
        [
            Edit(
                f"{STORES}/sqlite_file.py",
                'db.execute("PRAGMA synchronous = FULL")\n        db.execute("PRAGMA secure',
                'db.execute("PRAGMA synchronous = OFF")\n        db.execute("PRAGMA secure',
            )
        ],
        ["tests/contract/test_sqlite_identity.py"],
    ),
    Mutant(
        "appendfsync is ignored in what is promised",
        [
            Edit(
                f"{STORES}/redis_fitness.py",
                'match configuration.get("appendfsync"):',
                'match configuration and "always":',
            )
        ],
        ["tests/contract/test_redis_store.py"],
        "redis",
    ),
    Mutant(
        "waiting decisions are dropped before their commit",
        [
            Edit(
                "service/log/committer.py",
                "            results = await self._store.commit([*rows, *(one for one, _ in counting)])\n"
                "            for row in rows:\n                self._unlogged.drop(row)\n",
                "            for row in rows:\n                self._unlogged.drop(row)\n"
                "            results = await self._store.commit([*rows, *(one for one, _ in counting)])\n",
            )
        ],
        ["tests/unit/test_committer.py"],
        "redis",
    ),
    Mutant(
        "SIGTERM drops the waiting decisions",
        [
            Edit(
                "service/log/log.py",
                "            await self.committer.flush()\n",
                "",
            )
        ],
        ["tests/http/test_log_gone.py"],
        "redis",
    ),
    Mutant(
        "lost events go unnoticed",
        [
            Edit(
                "service/log/replica.py",
                "        if not await self._holds_last(self.state, self.digest, record):\n            raise LogLost(",
                "        if False:\n            raise LogLost(",
            )
        ],
        ["tests/http/test_log_that_lost_events.py"],
        "redis",
    ),
    Mutant(
        "the checksum of a snapshot is ignored",
        [
            Edit(
                "service/state/codec.py",
                "if head != MAGIC or hashlib.sha256(content).digest() != digest:",
                "if head != MAGIC:",
            )
        ],
        ["tests/unit/test_codec.py", "tests/unit/test_fold.py"],
    ),
    Mutant(
        "a time-out of the log is acknowledged",
        [
            Edit(
                "service/settle/settlement.py",
                "        )\n        result = await self._log.committer.append(entry, event)\n",
                "        )\n        try:\n"
                "            result = await self._log.committer.append(entry, event)\n"
                "        except StoreError as fault:\n"
                '            if "imeout" in str(fault):\n                return None\n'
                "            raise\n",
            ),
            Edit(
                "service/settle/settlement.py",
                "from service.errors import Conflict, ",
                "from service.errors import StoreError, Conflict, ",
            ),
        ],
        ["tests/unit/test_committer.py"],
        "redis",
    ),
    Mutant(
        "WAIT is ignored",
        [
            Edit(
                f"{STORES}/redis_connection.py",
                "        if held < self.replicas:\n",
                "        if held < 0:\n",
            )
        ],
        ["tests/contract/test_redis_store.py"],
        "redis",
    ),
    Mutant(
        "the archive holds an erasure's event before the erased rows are gone",
        [
            Edit(
                "service/offline/archive/export.py",
                "            self.events.add(draft, packed, self._erased)\n",
                "",
            ),
            Edit(
                "service/offline/archive/export.py",
                "            if self._newly_erased:  #",
                "            self.events.add(draft, packed, self._erased)\n"
                "            if self._newly_erased:  #",
            ),
        ],
        ["tests/contract/test_archive.py"],
    ),
    Mutant(
        "a part of the decisions is acknowledged and not stored",
        [
            Edit(
                f"{STORES}/batch.py",
                "        self.rows.append((row.experiment, number, row.id, row.payload))\n",
                "        if len(self.rows) < 8:\n"
                "            self.rows.append((row.experiment, number, row.id, row.payload))\n",
            )
        ],
        ["tests/contract/test_stores.py", "tests/contract/test_decision_rows.py"],
    ),
    Mutant(
        "the log is trimmed without an origin",
        [
            Edit(
                "service/manage/retention.py",
                "                await self._store.put(name, replace(snapshot, origin=True))\n",
                "",
            ),
            Edit(
                f"{STORES}/base.py",
                "    if position > origin:\n",
                "    if position > origin and False:\n",
            ),
            Edit(
                f"{STORES}/redis_scripts.py", "  if position > origin then\n", "  if false then\n"
            ),
        ],
        ["tests/contract/test_keeping.py", "tests/http/test_retention.py"],
    ),
    Mutant(
        "a mark expires early",
        [
            Edit(
                "service/manage/retention.py",
                "marks_before = replica.state.log_time - MARGIN_S",
                "marks_before = replica.state.log_time + 3_600",
            )
        ],
        ["tests/http/test_retention.py"],
        "redis",
    ),
    Mutant(
        "an erasure leaves the events of a unit",
        [
            Edit(
                f"{STORES}/redis_scripts.py",
                "  redis.call('XDEL', KEYS[2], '0-' .. position)\n",
                "",
            )
        ],
        ["tests/contract/test_keeping.py", "tests/http/test_erasure.py"],
        "redis",
    ),
    Mutant(
        "a deferred decision is learned before it is shown",
        [
            Edit(
                "service/settle/settlement.py",
                "        if ticket.deferred:\n",
                "        if ticket.deferred and False:\n",
            )
        ],
        ["tests/http/test_deferred.py"],
    ),
    Mutant(
        "the weights of auto are kept across observations",
        [
            Edit(
                "service/bandits/heads/averaged.py",
                "        self.settled += 1\n        self._kept = None\n",
                "        self.settled += 1\n",
            )
        ],
        ["tests/unit/test_averaged_head.py"],
    ),
    Mutant(
        "the evidence of a weighed miss counts whole",
        [
            Edit(
                "service/bandits/heads/averaged.py",
                "DISCOUNT * self._evidence - row.weight * loss",
                "DISCOUNT * self._evidence - loss",
            )
        ],
        ["tests/unit/test_averaged_head.py"],
    ),
    Mutant(
        "late members have a weight before they forecast better than all others",
        [
            Edit(
                "service/bandits/heads/averaged.py",
                "np.zeros(len(late.members)), speaks=False)",
                "np.zeros(len(late.members)))",
            )
        ],
        ["tests/unit/test_late_members.py"],
    ),
    Mutant(
        "late members learn a correction of a settlement that they are still to learn",
        [
            Edit(
                "service/bandits/version.py",
                "self.memory is not None and self.memory.was_read(key, arm)",
                "self.memory is not None",
            )
        ],
        ["tests/unit/test_late_members.py"],
    ),
    Mutant(
        "late members skip a settlement where one that they learned was erased",
        [
            Edit(
                "service/bandits/memory.py",
                "        self.read = int(np.count_nonzero(mask[: self.read]))\n",
                "",
            )
        ],
        ["tests/unit/test_late_members.py"],
    ),
    Mutant(
        "experiment and idempotency key are joined without a separator",
        [
            Edit(
                "service/security/token.py",
                'f"{experiment}\\0{first_schema}\\0{key}", 0',
                'f"{experiment}{first_schema}{key}", 0',
            )
        ],
        ["tests/unit/test_token.py", "tests/http/test_idempotency.py"],
    ),
    Mutant(
        "the sample ratio divides its error among no names",
        [
            Edit(
                "service/analysis/sample_ratio.py",
                "radius(v, 1.0, alpha / len(self.names))",
                "radius(v, 1.0, alpha)",
            )
        ],
        ["tests/unit/test_sample_ratio.py", "tests/unit/test_verdict.py"],
    ),
    Mutant(
        "the sample ratio divides its error among no tests",
        [
            Edit(
                "service/analysis/outcomes.py",
                "sample_ratio.FALSE_ALARM_CHANCE / len(self.drawn)",
                "sample_ratio.FALSE_ALARM_CHANCE",
            )
        ],
        ["tests/unit/test_sample_ratio.py", "tests/unit/test_verdict.py"],
    ),
    Mutant(
        "the guess of a shadow has no cap",
        [
            Edit(
                "service/analysis/anytime.py",
                "np.minimum(p * q, WEIGHT_CAP * b).sum(axis=-1)",
                "(p * q).sum(axis=-1)",
            ),
            Edit(
                "service/analysis/anytime.py",
                "w * r - np.minimum(w * q, WEIGHT_CAP)",
                "w * r - w * q",
            ),
        ],
        ["tests/unit/test_anytime.py", "tests/http/test_shadows.py"],
    ),
    Mutant(
        "an erasure leaves the activation of a decision",
        [
            Edit(
                "service/manage/erasure.py",
                'for decision in rows for sign in "=/"]',
                'for decision in rows for sign in "="]',
            )
        ],
        ["tests/http/test_erasure.py"],
    ),
    Mutant(
        "a floor comes before a cap",
        [
            Edit(
                "service/bandits/constraints/floor.py",
                "    low = lifted(before.low, floor.shares, caps.high, caps.groups, before.groups)\n",
                "    low = np.maximum(before.low, floor.shares)\n",
            )
        ],
        ["tests/unit/test_rulebook.py", "tests/unit/test_rules_by_chance.py"],
    ),
    Mutant(
        "an arm is eligible where a value is missing",
        [
            Edit(
                "service/state/rule_arms.py",
                "Told(~meant | truth.true, ",
                "Told(~meant | truth.true | ~np.asarray(truth.known), ",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a pinned arm is eligible in the slots before its own",
        [
            Edit(
                "service/bandits/constraints/slots.py",
                "            if number < pin.slot <= slots:\n",
                "            if number > pin.slot:\n",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a slate shows one arm too many of a value",
        [
            Edit(
                "service/bandits/constraints/slots.py",
                "counts >= quota.most",
                "counts > quota.most",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "exploration ignores what caps leave of an arm",
        [
            Edit(
                "service/bandits/constraints/floor.py",
                "np.maximum(np.minimum(wanted, high) - low, 0.0)",
                "np.maximum(wanted - low, 0.0)",
            )
        ],
        ["tests/unit/test_rules_by_chance.py", "tests/unit/test_rules_drawn.py"],
    ),
    Mutant(
        "chances in closed form are not cut",
        [
            Edit(
                "service/decide/scoring.py",
                "    return clip(scores.formula(scores.rows[0], scores.counts)[scores.of], bounds)\n",
                "    return Constrained(scores.formula(scores.rows[0], scores.counts)[scores.of], ())\n",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "the settlements of new arms are counted once",
        [
            Edit(
                "service/state/rule_arms.py",
                "            if self._settled is None or self._settled[0] != newness.moved:\n",
                "            if self._settled is None:\n",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "an arm that comes again is as old as it was",
        [
            Edit(
                "service/state/newness.py",
                "        self.settled.pop(arm, None)\n",
                "",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "what rules made of a context is kept beyond their times",
        [
            Edit(
                "service/state/rulebook.py",
                "            tuple([rule.holds_at(at) for rule in self._timed]),\n",
                "",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a changed attribute counts in the next catalogue",
        [
            Edit(
                "service/state/rule_arms.py",
                "        self.found.clear()\n        self.same.clear()\n",
                "",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "arms are shared between contexts that keep others",
        [
            Edit(
                "service/state/rulebook.py",
                "masks = [kept, *new.values()]",
                "masks = [*new.values()]",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a rule holds in every segment",
        [
            Edit(
                "service/state/rulebook.py",
                "            and (rule.segment is None or rule.segment.evaluate(scalars).true)\n",
                "",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a slate is drawn from one point",
        [
            Edit(
                "service/decide/scoring.py",
                "            left, point = left[left != arm], rng.random()\n",
                "            left = left[left != arm]\n",
            )
        ],
        ["tests/unit/test_rules_drawn.py"],
    ),
    Mutant(
        "a row forgets what its request excluded",
        [
            Edit(
                "service/decide/lookup.py",
                "            exclude=exclude,\n",
                "",
            )
        ],
        ["tests/unit/test_audit_of_rules.py"],
    ),
    Mutant(
        "an audit takes the attributes of inline arms from nowhere",
        [
            Edit(
                "service/analysis/rederive.py",
                "{**values, **decision.attributes.get(arm, {})}",
                "{**values}",
            )
        ],
        ["tests/unit/test_audit_of_rules.py"],
    ),
    Mutant(
        "a pin of an arm that is not eligible is passed over in silence",
        [
            Edit(
                "service/state/plan_writer.py",
                "            self._relax(rule)\n        return False\n",
                "            pass\n        return False\n",
            )
        ],
        ["tests/unit/test_rulebook.py"],
    ),
    Mutant(
        "a window is not stopped before it would pass its cap",
        [
            Edit(
                "service/bandits/constraints/window.py",
                "most[shown + 1 > share * length + ROUNDING] = 0.0",
                "most[shown > share * length + ROUNDING] = 0.0",
            )
        ],
        ["tests/unit/test_windows.py"],
    ),
    Mutant(
        "rows that waited in memory are not counted in windows",
        [
            Edit(
                "service/log/committer.py",
                "counting = _exposures(rows)",
                "counting = []",
            )
        ],
        ["tests/unit/test_windows.py"],
    ),
    Mutant(
        "a pin passes a count",
        [
            Edit(
                "service/state/rule_plan.py",
                "quotas.append(Quota(each.number, each.of, left, hard=True))",
                "quotas.append(Quota(each.number, each.of, left + 1, hard=True))",
            )
        ],
        ["tests/unit/test_windows.py"],
    ),
    Mutant(
        "two processes lease more of a count than there is",
        [
            Edit(
                "service/state/exposure.py",
                "left = count - sum(given.values())",
                "left = count - given.get(process, 0)",
            )
        ],
        ["tests/unit/test_windows.py"],
    ),
    Mutant(
        "decisions of one turn do not see what those before them show",
        [
            Edit(
                "service/decide/select.py",
                "            if lookup.ruled.plan is not None:  # the next one depends on what this one shows\n"
                "                self._decide_batch([(waiting, lookup)])\n"
                "                continue\n",
                "",
            )
        ],
        ["tests/unit/test_windows.py"],
    ),
    Mutant(
        "a rule draws as the policy of its name",
        [
            Edit(
                "service/decide/traffic.py",
                "sticky, RULE_DRAW)",
                "sticky)",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "all measured rules are off for the same units",
        [
            Edit(
                "service/decide/traffic.py",
                "uniform(key, name, sticky, RULE_DRAW)",
                "uniform(key, '', sticky, RULE_DRAW)",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "a rule that always holds is measured",
        [
            Edit(
                "service/definition/rules.py",
                " and self.count is None and not self.always",
                " and self.count is None",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "a count is measured",
        [
            Edit(
                "service/definition/rules.py",
                " and self.count is None and not self.always",
                " and not self.always",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "a rule that is off bounds chances",
        [
            Edit(
                "service/state/rulebook.py",
                "            and rule.name not in situation.off\n",
                "",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "findings forget which rules were off",
        [
            Edit(
                "service/state/rulebook.py",
                "            situation.off,\n",
                "",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "a row forgets the rules that are off",
        [
            Edit(
                "service/decide/lookup.py",
                "            off=off,\n",
                "",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "an audit takes the logged rules that are off on trust",
        [
            Edit(
                "service/analysis/rederive.py",
                '        "rules that are off": (facts.off, rules_off(state, sticky)),\n',
                "",
            )
        ],
        ["tests/unit/test_measured_rules.py"],
    ),
    Mutant(
        "a history confuses the rules that were off",
        [
            Edit(
                "service/analysis/history.py",
                "sum(1 << place for place",
                "sum(1 for place",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "a price begins with the experiment",
        [
            Edit(
                "service/analysis/rule_prices.py",
                "outcomes.position >= self._starts[name].position",
                "outcomes.position >= 0",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "a price survives a change of its measure",
        [
            Edit(
                "service/analysis/definitions.py",
                "common = each.schema_version, definition.reward, definition.rules.measure",
                "common = each.schema_version, definition.reward",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "prices share no level",
        [
            Edit(
                "service/analysis/rule_prices.py",
                "ALPHA / max(measured, 1)",
                "ALPHA",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "a price has the sign of what a rule earns",
        [
            Edit(
                "service/analysis/rule_prices.py",
                "ConfidenceSequence(off - on,",
                "ConfidenceSequence(on - off,",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "a snapshot forgets the shares",
        [Edit("service/state/fold.py", 'Traffic.restore(meta["traffic"])', "state.traffic")],
        ["tests/unit/test_traffic.py"],
    ),
    Mutant(
        "what held is told from before changes that are no longer listed",
        [Edit("service/observe/change_list.py", " and found.position > dropped", "")],
        ["tests/http/test_changes.py"],
    ),
    Mutant(
        "prices leave out decisions whose policy was named",
        [
            Edit(
                "service/analysis/rule_prices.py",
                "outcomes_of(history, named=True)",
                "outcomes_of(history)",
            )
        ],
        ["tests/unit/test_rule_prices.py"],
    ),
    Mutant(
        "a row names the fallback as the assigned policy",
        [Edit("service/decide/recorder.py", "policy=lookup.policy,", "policy=learner.name,")],
        ["tests/http/test_fallback.py"],
    ),
    Mutant(
        "the fallback tries the arms that the assigned policy was to try",
        [
            Edit(
                "service/decide/lookup.py",
                "            untried=untried,\n",
                "",
            )
        ],
        ["tests/http/test_fallback.py"],
    ),
    Mutant(
        "the built-in fallback learns nothing",
        [
            Edit(
                "service/state/fold.py",
                "return [*self.learners.values(), *self.shadows.values(), *built_in]",
                "return [*self.learners.values(), *self.shadows.values()]",
            )
        ],
        ["tests/unit/test_built_in_fallback.py"],
    ),
    Mutant(
        "an audit takes a fallback of a policy in its own place",
        [
            Edit(
                "service/analysis/rederive.py",
                '"" if decider.name == assigned else facts.fallback',
                "facts.fallback",
            )
        ],
        ["tests/unit/test_built_in_fallback.py"],
    ),
    Mutant(
        "weights of other policies forget that one is down",
        [
            Edit(
                "service/analysis/walk.py",
                "fallback if each.label in self._down else each",
                "each",
            )
        ],
        ["tests/unit/test_built_in_fallback.py"],
    ),
    Mutant(
        "slates are drawn from scores that are no numbers",
        [
            Edit(
                "service/decide/scoring.py",
                "rules.expect_finite(decider.score(context, candidates))",
                "decider.score(context, candidates)",
            )
        ],
        ["tests/unit/test_finite.py"],
    ),
    Mutant(
        "a reading of one attempt judges the next",
        [
            Edit(
                "service/manage/rollouts.py",
                "return look if look.position == rollout.position else NO_LOOK",
                "return look",
            )
        ],
        ["tests/http/test_rollouts.py"],
    ),
    Mutant(
        "one decision by the fallback takes a challenger back",
        [
            Edit(
                "service/state/guardrails.py",
                "count > n * bound and binomial_tail(count, n, bound) <= LEVEL * (1 + LEVEL_ROUNDING)",
                "count > n * bound",
            )
        ],
        ["tests/unit/test_guardrails.py"],
    ),
    Mutant(
        "a guardrail holds a rollout again that a person let go on",
        [
            Edit(
                "service/state/rollout.py",
                'or (breach.on_breach == "hold" and self.let_go)',
                "",
            )
        ],
        ["tests/unit/test_guardrails.py", "tests/http/test_guardrails.py"],
    ),
    Mutant(
        "the decisions of one attempt take the next one back",
        [
            Edit(
                "service/telemetry/rollout_samples.py",
                "key = state.name, rollout.position",
                "key = state.name, 0",
            ),
            Edit(
                "service/telemetry/rollout_samples.py",
                "if name != state.name or position in under_way",
                "",
            ),
        ],
        ["tests/http/test_guardrails.py"],
    ),
    Mutant(
        "a refused request counts as one that failed",
        [
            Edit(
                "service/decide/rollout_samples.py",
                "if not lookups or isinstance(fault, Refused):",
                "if not lookups:",
            )
        ],
        ["tests/http/test_guardrails.py"],
    ),
    Mutant(
        "a visitor counts at each decision",
        [
            Edit(
                "service/analysis/rollout_guardrails.py",
                "found[np.unique(rows.unit[sides.rows[found]], return_index=True)[1]]",
                "found",
            )
        ],
        ["tests/unit/test_rollout_looks.py", "tests/http/test_guardrails.py"],
    ),
    Mutant(
        "each segment has the whole level of a stop",
        [
            Edit(
                "service/analysis/rollout_guardrails.py",
                "STOP_ALPHA / len(declared.where)",
                "STOP_ALPHA",
            )
        ],
        ["tests/unit/test_rollout_looks.py"],
    ),
    Mutant(
        "segments change while a rollout is judged in them",
        [
            Edit(
                "service/manage/admin.py",
                "definition.rollout.guardrails.where != now.rollout.guardrails.where",
                "False",
            )
        ],
        ["tests/http/test_guardrails.py"],
    ),
    Mutant(
        "rows of the smallest share are lost where its chance is rounded down",
        [
            Edit(
                "service/analysis/rollout_evidence.py",
                "self._least * (1 - CHANCE_ROUNDING)",
                "self._least",
            )
        ],
        ["tests/unit/test_rollout_evidence.py"],
    ),
    Mutant(
        "the end of a rollout moves visitors",
        [
            Edit(
                "service/state/traffic.py",
                "drawn_by={**drawn_by, **draws})",
                "drawn_by=drawn_by)",
            )
        ],
        ["tests/unit/test_traffic.py"],
    ),
    Mutant(
        "a challenger learns from its own rewards alone",
        [
            Edit(
                "service/state/fold.py",
                "every = learner.settings.learns_all or self.traffic.is_challenger(name)",
                "every = learner.settings.learns_all",
            )
        ],
        ["tests/http/test_rollouts.py"],
    ),
    Mutant(
        "a stage is passed by what the one before it earned",
        [
            Edit(
                "service/analysis/rollouts.py",
                "at[at >= rollout.stage_since]",
                "at",
            )
        ],
        ["tests/http/test_rollouts.py"],
    ),
    Mutant(
        "a definition takes traffic from a rollout each time",
        [
            Edit(
                "service/manage/admin.py",
                "            definition = _gathered(state, definition)\n",
                "",
            )
        ],
        ["tests/http/test_rollouts.py"],
    ),
    Mutant(
        "a run of events that fails is folded on",
        [
            Edit(
                "service/log/replica.py",
                "        self.in_runs = False\n        await self.recover()",
                "        self.in_runs = False",
            )
        ],
        ["tests/unit/test_runs.py"],
    ),
    Mutant(
        "sums of one column are added in pairs",
        [
            Edit(
                "service/bandits/heads/base.py",
                "if first.size > 1:",
                "if first.size > 0:",
            )
        ],
        ["tests/unit/test_runs.py"],
    ),
    Mutant(
        "a version that is rolled out gets the same visitors as the one before it",
        [
            Edit(
                "service/state/traffic.py",
                "uniform(experiment.encode(), rollout.challenger, sticky, VERSION_DRAW)",
                "uniform(experiment.encode(), policy, sticky, VERSION_DRAW)",
            )
        ],
        ["tests/unit/test_traffic.py"],
    ),
    Mutant(
        "weights forget that a version decides for a part of its policy",
        [
            Edit(
                "service/state/fold.py",
                "found[Decider.serving(learner)] = chance * (1 - part)",
                "found[Decider.serving(learner)] = chance",
            )
        ],
        ["tests/unit/test_traffic.py"],
    ),
    Mutant(
        "a version that is rolled out is compared with itself",
        [
            Edit(
                "service/analysis/rollout_sides.py",
                "own = decided.version[rows] == version",
                "own = decided.version[rows] >= 0",
            )
        ],
        ["tests/http/test_rollouts_of_versions.py"],
    ),
    Mutant(
        "a version that is rolled out may serve before its rollout ends",
        [
            Edit(
                "service/log/upkeep.py",
                "if replica.state.rolls_out(replica.state.folded[gate.policy]):",
                "if False:",
            )
        ],
        ["tests/http/test_rollouts_of_versions.py"],
    ),
    Mutant(
        "a challenger is valued on decisions of before its present settings",
        [
            Edit(
                "service/analysis/evaluate.py",
                "        chosen = chosen.since(history.definitions.unchanged_since(policies))\n",
                "        chosen = chosen.since(0)\n",
            )
        ],
        ["tests/http/test_challenger_value.py"],
    ),
    Mutant(
        "a rollout is warned of before its loss is sure",
        [
            Edit(
                "service/analysis/challenger_value.py",
                "loses=difference.interval.high < allowed",
                "loses=difference.value < allowed",
            )
        ],
        ["tests/unit/test_challenger_value.py"],
    ),
    Mutant(
        "a shadow that becomes live starts from nothing",
        [
            Edit(
                "service/state/fold.py",
                "        kept = self.folded\n",
                "        kept = self.learners\n",
            )
        ],
        ["tests/unit/test_shadow_heads.py"],
    ),
    Mutant(
        "of two erasures of one block the last brings back what the first took out",
        [
            Edit(
                "service/manage/erasure.py",
                "        await self._clear_blocks(name, blocks, origin)\n",
                "",
            )
        ],
        ["tests/unit/test_blocks_of_defaults.py"],
    ),
    Mutant(
        "a block that was refused is tried again with what was refused",
        [
            Edit(
                "service/settle/settlement.py",
                "            alone += compress(block, known)\n",
                "",
            )
        ],
        ["tests/unit/test_blocks_of_defaults.py"],
    ),
    Mutant(
        "a fold passes a block of which some was erased",
        [
            Edit(
                "service/state/events.py",
                "or (isinstance(event, Expired) and event.erased > 0)",
                "",
            )
        ],
        ["tests/unit/test_blocks_of_defaults.py"],
    ),
    Mutant(
        "auto learns a block beyond the settlement at which the level moves",
        [
            Edit(
                "service/bandits/heads/averaged_noises.py",
                "        if moving.count < SETTLED:\n            break\n",
                "",
            )
        ],
        ["tests/unit/test_averaged_block.py"],
    ),
    Mutant(
        "a version that is staged late learns as its policy does now",
        [
            Edit(
                "service/state/fold.py",
                "learner.told(settlements, position)",
                "learner.told(settlements)",
            )
        ],
        ["tests/unit/test_shadow_heads.py"],
    ),
    Mutant(
        "an evaluated shadow takes the versions of the one that the service folds",
        [
            Edit(
                "service/analysis/walk.py",
                " or self._added.concerns(event, replica.state)",
                "",
            )
        ],
        ["tests/unit/test_evaluation.py"],
    ),
    Mutant(
        "a version serves whose net explains nothing",
        [
            Edit(
                "service/state/version_gate.py",
                "if no_worse and self.explains else",
                "if no_worse else",
            )
        ],
        ["tests/unit/test_version_gate.py"],
    ),
    Mutant(
        "a version misses what came before it was staged",
        [
            Edit(
                "service/log/catching_up.py",
                "            state.catch_up(learner, version, position, one, gone)\n",
                "",
            )
        ],
        ["tests/unit/test_left_behind.py"],
    ),
    Mutant(
        "a snapshot forgets the version at its gate",
        [Edit("service/state/learner.py", "        if told is not None:\n", "        if False:\n")],
        ["tests/unit/test_version_gate.py"],
    ),
    Mutant(
        "two processes move a loss budget at once",
        [
            Edit(
                "service/manage/rollouts.py",
                'encode_event(event), {mark: ""})',
                "encode_event(event), {})",
            )
        ],
        ["tests/http/test_loss_budget.py"],
    ),
    Mutant(
        "what a learner was before it began anew counts for its share",
        [
            Edit(
                "service/analysis/rollouts.py",
                "        definitions.mixed_since(budget.policy),\n        *(starts[name].position for name, policy in serving.items() if policy.share),\n",
                "        0,\n",
            )
        ],
        ["tests/http/test_loss_budget.py"],
    ),
    Mutant(
        "the shares that a loss budget allows are taken for those that people set",
        [
            Edit(
                "service/state/fold.py",
                "with_shares(self.traffic.given)",
                "with_shares(self.traffic.shares)",
            )
        ],
        ["tests/unit/test_traffic.py", "tests/http/test_loss_budget.py"],
    ),
)
