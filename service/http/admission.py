"""What a request costs and may contain, by the key that it came with: the same for both ways in."""

from collections.abc import Sequence

from msgspec import structs

from service.definition.select_request import InlineArm, SelectRequest
from service.errors import TooLarge
from service.http.services import Services
from service.security.access import Caller
from service.security.profile import cost

BASE_COST = 1
"""The cost of every request before its body is read."""


def expect_short(caller: Caller, length: int) -> None:
    """Raises TooLarge. length: of the body, in bytes."""
    most = caller.grant.profile.body_bytes
    if length > most:
        raise TooLarge(f"at most {most} bytes with this key")


def admit_question(
    services: Services, caller: Caller | None, question: SelectRequest, before: int = 0
) -> SelectRequest:
    """One question, by itself; with a key, it names its experiment from here on. Raises Forbidden,
    TooManyRequests, and Invalid where the name is needed.

    before: what of its cost was counted already; caller: None where keys are off
    """
    if caller is None:
        return question
    services.access.expect_allowed(caller, question)
    services.access.charge(caller, _cost(services, question), before, question.unit)
    name = services.engine.resolve(question.experiment)
    caller.grant.expect(name)
    return question if question.experiment else structs.replace(question, experiment=name)


def admit_one_of_batch(
    services: Services, caller: Caller | None, question: SelectRequest
) -> SelectRequest:
    """The same of one whose cost was counted with its batch."""
    return admit_question(services, caller, question, _cost(services, question))


def admit_batch(
    services: Services, caller: Caller | None, questions: Sequence[SelectRequest | None]
) -> None:
    """What a batch costs, of whose requests each is looked at by itself. None: a reward. Raises
    Forbidden, TooManyRequests."""
    if caller is None:
        return
    services.access.expect_batch(caller, len(questions))
    whole = sum(BASE_COST if each is None else _cost(services, each) for each in questions)
    services.access.charge(caller, whole, BASE_COST)


def _cost(services: Services, question: SelectRequest) -> int:
    """By the arms that are named, or those of the catalogue."""
    arms = question.arms
    if arms is None:
        return cost(services.engine.offered(question.experiment), question.top_k)
    inline = sum(isinstance(arm, InlineArm) for arm in arms)
    return cost(len(arms), question.top_k, inline)
