"""Scores that are no numbers decide nothing, and settings that would make them are refused."""

from typing import Any

import numpy as np
import pytest

from service.decide import scoring
from service.decide.scoring import decide
from service.errors import Invalid, NoFiniteScores
from service.http.services import Services
from service.log.stores.memory import MemoryStore
from service.state.decider import Decider
from service.state.decisions import NO_FACTS
from service.state.rulebook import Situation
from tests.support.broken import break_head
from tests.support.clock import run_virtual
from tests.unit.audited import define, live
from tests.unit.folding import Log, shop


@pytest.mark.parametrize("setting", ["alpha", "ridge", "noise"])
@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_a_setting_that_overflows_is_refused(setting: str, value: float) -> None:
    definition = shop(p={"kind": "linucb", setting: value})

    async def play(services: Services) -> None:
        with pytest.raises(Invalid) as refused:
            await define(services, definition)
        assert [fault.path for fault in refused.value.faults] == [f"policies.p.{setting}"]

    run_virtual(live(MemoryStore(), play))


@pytest.mark.parametrize("kind", ["linucb", "lints"])
def test_a_head_that_is_no_number_decides_nothing(kind: str) -> None:
    """The landed code logged a decision with `null` in place of its probabilities."""
    log = Log()
    log.define(shop(p={"kind": kind}))
    state = log.state
    learner: Any = state.learners["p"]
    learner.active.head.b[:] = np.nan
    context = state.schema.encode_context({"pet": "cat"})
    with np.errstate(all="ignore"), pytest.raises(NoFiniteScores, match="policy p"):
        decide(Decider.serving(learner), context, state.candidates, 1, 0)
    with np.errstate(all="ignore"), pytest.raises(NoFiniteScores, match="policy p"):
        decide(Decider.serving(learner), context, state.candidates, 2, 0)
    with np.errstate(all="ignore"), pytest.raises(NoFiniteScores, match="policy p"):
        scoring.decide_batch(Decider.serving(learner), [context] * 2, state.candidates, [0, 1])


@pytest.mark.parametrize("kind", ["popularity", "auto", "lints", "linucb", "squarecb"])
@pytest.mark.parametrize("rules", [{}, {"wide": {"explore": {"share": 0.3}}}], ids=["", "ruled"])
def test_no_slate_is_drawn_from_what_is_no_number(kind: str, rules: Any) -> None:
    """Slates of clicks by arm were: draws that are no numbers tied in some order."""
    log = Log()
    log.define({**shop(p={"kind": kind}), "rules": rules})
    log.settle("p", {"toy1": 1.0})
    state = log.state
    break_head(state.learners["p"])
    context = state.schema.encode_context({"pet": "cat"})
    limits = state.rule(state.candidates, Situation({"pet": "cat"}, 0.0)).limits
    assert (limits is None) == (not rules)
    for slots in (1, 2):
        with np.errstate(all="ignore"), pytest.raises(NoFiniteScores, match="policy p"):
            decide(
                Decider.serving(state.learners["p"]),
                context,
                state.candidates,
                slots,
                0,
                NO_FACTS,
                limits,
            )
