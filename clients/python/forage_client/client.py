"""Decisions and rewards for a backend: the shape of the browser's SDK, sync and async.

    async with AsyncForage("http://127.0.0.1:8000", experiment="zooplus", fallback="4") as forage:
        decision = await forage.select(context={"persona": "cat_connoisseur"})
        await forage.reward(decision, 1)

`Forage` is the same without `async`. `select` never raises for what the network or the service
does: it returns within its budget, with the fallback if need be. A reward is sent again until it
was answered, and counts once.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    NamedTuple,
    TypedDict,
)
from urllib.parse import quote

import anyio
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from forage_client.answers import json_of, problem_of, retry_after_s
from forage_client.errors import ClientError, Unreachable, Unsendable

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Json = dict[str, Any]

BUDGET_S = 0.2
REWARD_S = 10.0
SELECT_PAUSE_S = 0.04
REWARD_PAUSE_S = 0.3
LONGEST_PAUSE_S = 30.0
RETRYABLE = frozenset({408, 429})
TOLD = 1_000
"""Refusals that are logged once each; further ones are not logged."""

logger = logging.getLogger("forage_client")


class Ranked(NamedTuple):
    """A shown arm. propensity: chance of this arm in this slot, given the policy."""

    arm: str
    propensity: float


class Decision(NamedTuple):
    """What to show. Of a fallback all but `arm`, `arms`, `fallback` and `error` is empty.

    arm              in the first slot; None: no fallback was given
    arms             from the first slot down
    decision         sealed token: what a reward is for
    propensity       chance with which `arm` was chosen, given the policy
    slate_propensity of the whole ranking; None where one arm was asked for, or where a float cannot
                     hold it
    slate_log_propensity   its natural logarithm, always there
    model_version    policy/version@position
    error            why it is a fallback: Unreachable, Unsendable, or the service's Problem
    """

    arm: str | None
    arms: tuple[str, ...]
    fallback: bool
    error: ClientError | None = None
    decision: str | None = None
    id: str = ""
    propensity: float | None = None
    ranking: tuple[Ranked, ...] = ()
    slate_propensity: float | None = None
    slate_log_propensity: float | None = None
    experiment: str = ""
    policy: str = ""
    model_version: str = ""
    logged: bool = False
    deferred: bool = False


class Asked(TypedDict, total=False):
    """What `select` takes. What is left out is as the client was made with.

    context          features of the user and the moment, by name
    arms             ids, or {"id": ..., "features": {...}}; left out: all active arms
    unit             who the decision is for; kept by the service only as a keyed hash
    top_k            how many arms to rank
    deferred         nothing is learned of it before `activate` (or a reward) says it was shown
    fallback         an arm, or a ranking, for when there is no answer in time
    budget_s         longest that `select` takes, retries included
    idempotency_key  the same key gives the same decision; left out: one a call, for its retries
    """

    context: Mapping[str, Any]
    arms: Sequence[str | Mapping[str, Any]]
    unit: str
    policy: str
    experiment: str
    top_k: int
    deferred: bool
    fallback: str | Sequence[str] | None
    budget_s: float
    idempotency_key: str


class AsyncForage:
    """Decisions and rewards over one pool of connections; close it, or use it as a context.

    key        sent as `Authorization: Bearer`
    reward_s   longest that a reward is sent again before Unreachable is raised
    transport  of httpx, for tests and for who needs another
    asked      what every `select` asks unless it says otherwise
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        reward_s: float = REWARD_S,
        transport: httpx.AsyncBaseTransport | None = None,
        **asked: Unpack[Asked],
    ) -> None:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._told: set[str] = set()
        self._client = httpx.AsyncClient(base_url=url, headers=headers, transport=transport)
        self._asked, self._reward_s = asked, reward_s

    async def select(self, **asked: Unpack[Asked]) -> Decision:
        """What to show. Returns within the budget and raises nothing of the network's."""
        request: Asked = {**self._asked, **asked}
        budget_s = request.pop("budget_s", BUDGET_S)
        fallback = request.pop("fallback", None)
        key = request.pop("idempotency_key", None) or secrets.token_urlsafe(16)
        try:
            content = _encoded(dict(request))
            call = partial(self._post, "/select", content, {"Idempotency-Key": key})
            answer = await _insist(call, budget_s, SELECT_PAUSE_S)
        except ClientError as error:
            if not isinstance(error, Unreachable):
                self._tell_once(error)
            arms = (fallback,) if isinstance(fallback, str) else tuple(fallback or ())
            return Decision(arms[0] if arms else None, arms, fallback=True, error=error)
        return _decided(answer, deferred=request.get("deferred", False))

    async def reward(
        self, decision: Decision, value: float | Mapping[str, float], *, reward_id: str = ""
    ) -> str | None:
        """Say what came of it: of the only arm shown, or by arm. 'accepted', 'duplicate' or
        'corrected'; None for a fallback. Raises Unreachable, and Problem where it is refused."""
        form = "rewards" if isinstance(value, Mapping) else "reward"
        given = dict(value) if isinstance(value, Mapping) else value
        return await self._settle(decision, {form: given}, reward_id)

    async def cascade(
        self, decision: Decision, clicked: str | None = None, *, reward_id: str = ""
    ) -> str | None:
        """The ranking was looked at from the top down to `clicked`; None: to its end, without a
        click. Answers and raises as `reward` does."""
        return await self._settle(decision, {"feedback": "cascade", "clicked": clicked}, reward_id)

    async def activate(self, decision: Decision) -> str | None:
        """Say that a deferred decision was shown: 'activated' or 'duplicate'; None where there is
        nothing to say. Raises as `reward` does."""
        if decision.fallback or not decision.deferred:
            return None
        path = f"/decisions/{decision.id}/activate?experiment={quote(decision.experiment)}"
        return await self._tell(path, None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _settle(self, decision: Decision, outcome: Json, reward_id: str) -> str | None:
        if decision.fallback:
            return None
        await self.activate(decision)  # what is rewarded was shown
        body = {"decision_id": decision.decision, "reward_id": reward_id, **outcome}
        return await self._tell("/reward", body)

    async def _tell(self, path: str, body: Json | None) -> str:
        call = partial(self._post, path, b"" if body is None else _encoded(body))
        answer = await _insist(call, self._reward_s, REWARD_PAUSE_S)
        return str(answer["status"])

    async def _post(self, path: str, content: bytes, headers: Any = None) -> httpx.Response:
        return await self._client.post(path, content=content, headers=headers, timeout=None)

    def _tell_once(self, error: ClientError) -> None:
        """Log what every further request of this kind would meet as well."""
        told = str(error)
        if told not in self._told and len(self._told) < TOLD:
            self._told.add(told)
            logger.error("select falls back: %s", told)


def _encoded(body: Json) -> bytes:
    """JSON of a body, numpy's numbers and arrays included. Raises Unsendable."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsendable(f"the request cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """A numpy scalar or array as plain numbers. Raises TypeError for any other object."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


async def _insist(
    call: Callable[[], Awaitable[httpx.Response]], within_s: float, first_pause_s: float
) -> Json:
    """Call until an answer that counts. Raises Problem, or Unreachable after `within_s`."""
    deadline = time.monotonic() + within_s
    fault: ClientError = Unreachable(f"no answer within {within_s:g} s")
    tries = 0
    while True:
        pause_s = min(LONGEST_PAUSE_S, first_pause_s * 2.0**tries) * random.uniform(0.5, 1.0)
        try:
            with anyio.fail_after(max(0.0, deadline - time.monotonic())):
                response = await call()
            if response.is_success:
                return json_of(response, str(response.url))
            fault = problem_of(response)
            if response.status_code < 500 and response.status_code not in RETRYABLE:
                raise fault
            pause_s = max(pause_s, retry_after_s(response))
        except TimeoutError:
            raise fault from None
        except httpx.TransportError as error:
            fault = Unreachable(str(error) or type(error).__name__)
        if time.monotonic() + pause_s >= deadline:
            raise fault
        await anyio.sleep(pause_s)
        tries += 1


def _decided(answer: Json, *, deferred: bool) -> Decision:
    ranking = tuple(Ranked(each["arm"], each["propensity"]) for each in answer["ranking"])
    return Decision(
        arm=answer["arm"],
        arms=tuple(each.arm for each in ranking),
        fallback=False,
        decision=answer["decision_id"],
        id=answer["id"],
        propensity=answer["propensity"],
        ranking=ranking,
        slate_propensity=answer["slate_propensity"],
        slate_log_propensity=answer["slate_log_propensity"],
        experiment=answer["experiment"],
        policy=answer["policy"],
        model_version=answer["model_version"],
        logged=answer["logged"],
        deferred=deferred,
    )


class Forage:
    """`AsyncForage` for code that is not async, and for many threads at once.

    It runs on an event loop in a thread of its own: budgets hold to the end of an answer, whatever
    the socket does. Make it after a fork, not before.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        reward_s: float = REWARD_S,
        transport: httpx.AsyncBaseTransport | None = None,
        **asked: Unpack[Asked],
    ) -> None:
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._inner = AsyncForage(url, key=key, reward_s=reward_s, transport=transport, **asked)
        self._stack.callback(self._portal.call, self._inner.aclose)

    def select(self, **asked: Unpack[Asked]) -> Decision:
        """As AsyncForage.select."""
        return self._portal.call(partial(self._inner.select, **asked))

    def reward(
        self, decision: Decision, value: float | Mapping[str, float], *, reward_id: str = ""
    ) -> str | None:
        """As AsyncForage.reward."""
        return self._portal.call(partial(self._inner.reward, decision, value, reward_id=reward_id))

    def cascade(
        self, decision: Decision, clicked: str | None = None, *, reward_id: str = ""
    ) -> str | None:
        """As AsyncForage.cascade."""
        call = partial(self._inner.cascade, decision, clicked, reward_id=reward_id)
        return self._portal.call(call)

    def activate(self, decision: Decision) -> str | None:
        """As AsyncForage.activate."""
        return self._portal.call(self._inner.activate, decision)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
