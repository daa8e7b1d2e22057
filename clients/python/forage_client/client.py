"""Decisions and rewards for a backend: the shape of the browser's SDK, sync and async.

    async with AsyncForage("http://127.0.0.1:8000", experiment="zooplus", fallback="4") as forage:
        decision = await forage.select(context={"persona": "cat_connoisseur"})
        await forage.reward(decision, 1)

`Forage` is the same without `async`. `select` never raises, whatever the network, the service or
its caller gives: it returns within its budget, with the fallback if need be. A reward is sent again
until it was answered, and counts once.
"""

from __future__ import annotations

import json
import logging
import math
import random
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, TypedDict, TypeVar
from urllib.parse import quote

import anyio
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from forage_client.answers import json_of, problem_of, read, retry_after_s
from forage_client.decision import Decision, decided
from forage_client.errors import ClientError, Unreachable, Unsendable

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Json = dict[str, Any]
T = TypeVar("T")

BUDGET_S = 0.2
REWARD_S = 10.0
SELECT_PAUSE_S = 0.04
REWARD_PAUSE_S = 0.3
LONGEST_PAUSE_S = 30.0
RETRYABLE = frozenset({408, 429})
STATUSES = frozenset({"accepted", "duplicate", "corrected", "ignored", "activated"})
TOLD = 1_000
"""Refusals that are logged once each; further ones are not logged."""

CLOSED = "this client is closed"

logger = logging.getLogger("forage_client")


class Asked(TypedDict, total=False):
    """What `select` takes. What is left out is as the client was made with.

    context          features of the user and the moment, by name
    arms             ids, or {"id": ..., "features": {...}, "attributes": {...}}; left out: all
                     active arms
    exclude          ids of arms that are not to be shown, such as those in the basket
    only             ids of arms: no other of `arms` is shown; it may name some that are not there
    unit             who the decision is for; kept by the service only as a keyed hash
    top_k            how many arms to rank
    deferred         nothing is learned of it before `activate` (or a reward) says it was shown
    fallback         an arm, or a ranking, for when there is no answer in time
    budget_s         longest that `select` takes, retries included
    idempotency_key  the same key gives the same decision; left out: one a call, for its retries
    """

    context: Mapping[str, Any]
    arms: Sequence[str | Mapping[str, Any]]
    exclude: Sequence[str]
    only: Sequence[str]
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
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._told: set[str] = set()
        self._client = httpx.AsyncClient(base_url=url, headers=headers, transport=transport)
        self._asked, self._reward_s = asked, _seconds(reward_s, "reward_s")

    async def select(self, **asked: Unpack[Asked]) -> Decision:
        """Choose what to show. Returns within the budget and raises nothing but a cancellation."""
        request: Json = {**self._asked, **asked}
        budget_s = request.pop("budget_s", BUDGET_S)
        fallback = request.pop("fallback", None)
        key = request.pop("idempotency_key", None) or secrets.token_urlsafe(16)
        try:
            _arms_of(fallback)
            content, sent = _encoded(request)
            call = partial(self._post, "/select", content, _key_header(key))
            read_answer = partial(decided, asked=sent)
            within_s = _seconds(budget_s, "budget_s")
            return await _insist(call, read_answer, within_s, SELECT_PAUSE_S)
        except ClientError as error:
            return self._fall_back(error, **asked)

    def _fall_back(self, error: ClientError, **asked: Unpack[Asked]) -> Decision:
        """Return what to show instead of an answer; `error` is logged unless it passes by
        itself."""
        if not isinstance(error, Unreachable):
            self._tell_once(f"select falls back: {error}")
        try:
            arms = _arms_of({**self._asked, **asked}.get("fallback"))
        except Unsendable:
            arms = ()
        return Decision(arms[0] if arms else None, arms, fallback=True, error=error)

    async def reward(
        self, decision: Decision, value: float | Mapping[str, float], *, reward_id: str = ""
    ) -> str | None:
        """Say what came of it: of the only arm shown, or by arm. 'accepted', 'duplicate',
        'corrected', or 'ignored' where another reward was first and no further one counts (the log
        has the reason); None for a fallback. Raises Unreachable, Unsendable, and Problem where it
        is refused."""
        form = "rewards" if isinstance(value, Mapping) else "reward"
        given = dict(value) if isinstance(value, Mapping) else value
        return await self._settle(decision, {form: given}, reward_id)

    async def cascade(
        self, decision: Decision, clicked: str | None = None, *, reward_id: str = ""
    ) -> str | None:
        """Report that the ranking was looked at from the top down to `clicked`; None: to its end,
        without a click. Answers and raises as `reward` does."""
        return await self._settle(decision, {"feedback": "cascade", "clicked": clicked}, reward_id)

    async def activate(self, decision: Decision) -> str | None:
        """Say that a deferred decision was shown: 'activated' or 'duplicate'; None where there is
        nothing to say. Raises as `reward` does."""
        _expect_decision(decision)
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
        _expect_decision(decision)
        if decision.fallback:
            return None
        await self.activate(decision)  # what is rewarded was shown
        body = {"decision_id": decision.decision, "reward_id": reward_id, **outcome}
        return await self._tell("/reward", body)

    async def _tell(self, path: str, body: Json | None) -> str:
        call = partial(self._post, path, b"" if body is None else _encoded(body)[0])
        answer = await _insist(call, _status_answer, self._reward_s, REWARD_PAUSE_S)
        if (reason := answer.get("reason")) is not None:
            self._tell_once(f"a reward cannot count: {reason}")
        return str(answer["status"])

    async def _post(self, path: str, content: bytes, headers: Any = None) -> httpx.Response:
        if self._client.is_closed:
            raise Unsendable(CLOSED)
        request = self._client.build_request(
            "POST", path, content=content, headers=headers, timeout=None
        )
        response = await self._client.send(request, stream=True)
        try:
            return await read(response)
        finally:
            await response.aclose()

    def _tell_once(self, fault: str) -> None:
        """Log what every further request of this kind would meet as well."""
        if fault not in self._told and len(self._told) < TOLD:
            self._told.add(fault)
            logger.error("%s", fault)


def _encoded(body: Json) -> tuple[bytes, Json]:
    """Return a body as JSON, numpy's numbers and arrays included, and what it says. Raises
    Unsendable."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain)
        return text.encode(), json.loads(text)
    except Exception as error:  # the caller's own objects may raise anything
        raise Unsendable(f"the request cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return a numpy scalar or array as plain numbers, a mapping as a dict. Raises TypeError for
    any other object."""
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _arms_of(fallback: Any) -> tuple[str, ...]:
    """Return the arms to show without an answer. Raises Unsendable."""
    arms = [fallback] if isinstance(fallback, str) else [] if fallback is None else fallback
    if isinstance(arms, (list, tuple)) and all(isinstance(arm, str) for arm in arms):
        return tuple(arms)
    kind = type(fallback).__name__
    raise Unsendable(f"fallback must be the id of an arm or a list of them, not {kind}")


def _key_header(key: Any) -> dict[str, str]:
    """Return the header that names a call. Raises Unsendable."""
    if isinstance(key, str) and key.isascii() and key.isprintable():
        return {"Idempotency-Key": key}
    raise Unsendable("idempotency_key must be printable ASCII")


def _seconds(value: Any, name: str) -> float:
    """Return a number of seconds. Raises Unsendable."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise Unsendable(f"{name} must be a number of seconds")
    return seconds


def _expect_decision(decision: Any) -> None:
    if not isinstance(decision, Decision):
        raise Unsendable(f"a reward is of a Decision, not of {type(decision).__name__}")


def _status_answer(answer: Json) -> Json:
    """Return an answer to a reward or an activation. Raises Unreachable where it is none."""
    status = answer.get("status")
    if isinstance(status, str) and status in STATUSES:
        return answer
    raise Unreachable("the answer says nothing that Forage would: `status` is missing or wrong")


async def _insist(
    call: Callable[[], Awaitable[httpx.Response]],
    read_answer: Callable[[Json], T],
    within_s: float,
    first_pause_s: float,
) -> T:
    """Call until an answer that counts. Raises Problem, or Unreachable after `within_s`."""
    deadline = anyio.current_time() + within_s
    fault: ClientError = Unreachable(f"no answer within {within_s:g} s")
    tries = 0
    while True:
        pause_s = min(LONGEST_PAUSE_S, first_pause_s * 2.0 ** min(tries, 16))
        pause_s *= random.uniform(0.5, 1.0)
        try:
            with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                response = await call()
            if response.is_success:
                return read_answer(json_of(response, str(response.url)))
            fault = problem_of(response)
            if response.status_code < 500 and response.status_code not in RETRYABLE:
                raise fault
            pause_s = max(pause_s, retry_after_s(response))
        except TimeoutError:
            raise fault from None
        except Unreachable as error:
            fault = error
        except httpx.RequestError as error:
            fault = Unreachable(str(error) or type(error).__name__)
        if anyio.current_time() + pause_s >= deadline:
            raise fault
        await anyio.sleep(pause_s)
        tries += 1


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
        self._closed = False
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self._inner = AsyncForage(url, key=key, reward_s=reward_s, transport=transport, **asked)
        self._stack.callback(self._portal.call, self._inner.aclose)

    def select(self, **asked: Unpack[Asked]) -> Decision:
        """Do the same as `AsyncForage.select`."""
        try:
            return self._run(partial(self._inner.select, **asked))
        except Unsendable as error:  # closed
            return self._inner._fall_back(error, **asked)

    def reward(
        self, decision: Decision, value: float | Mapping[str, float], *, reward_id: str = ""
    ) -> str | None:
        """Do the same as `AsyncForage.reward`."""
        return self._run(partial(self._inner.reward, decision, value, reward_id=reward_id))

    def cascade(
        self, decision: Decision, clicked: str | None = None, *, reward_id: str = ""
    ) -> str | None:
        """Do the same as `AsyncForage.cascade`."""
        return self._run(partial(self._inner.cascade, decision, clicked, reward_id=reward_id))

    def activate(self, decision: Decision) -> str | None:
        """Do the same as `AsyncForage.activate`."""
        return self._run(partial(self._inner.activate, decision))

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._closed = True
        self._stack.close()

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call in the thread of the event loop. Raises what it raises, or Unsendable."""
        try:
            return self._portal.call(call)
        except RuntimeError:
            if not self._closed:
                raise
            raise Unsendable(CLOSED) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
