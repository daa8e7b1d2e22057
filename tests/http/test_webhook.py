"""Changes that the service sends to an address of the operator."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import ClassVar

import httpx
import pytest
from pydantic import SecretStr

from service.log.log import Log
from service.log.stores.memory import MemoryStore
from service.observe.webhook import (
    ANSWER_SECONDS,
    GIVE_UP_SECONDS,
    LONGEST_WAIT_SECONDS,
    LOOK_SECONDS,
    REPEATED_SECONDS,
    Webhook,
)
from service.settings import Settings
from tests.support.clock import SetClock
from tests.support.service import Json, Wire, serving
from tests.support.stores import Disk

ADDRESS = "https://hooks.example/forage?team=shop"
SECRET = "a secret of the operator"

Status = Callable[[], Awaitable[int]]


class Receiver:
    """A receiver in place of the network. status: of its next answers, by message; by default it
    accepts."""

    def __init__(self) -> None:
        self.got: list[httpx.Request] = []
        self.at: list[float] = []
        self.status: dict[str, Status] = {}

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.got.append(request)
        self.at.append(asyncio.get_running_loop().time())
        status = self.status.get(self.messages[-1]["id"])
        return httpx.Response(200 if status is None else await status())

    @property
    def messages(self) -> list[Json]:
        return [json.loads(request.content) for request in self.got]

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.messages]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))


@contextmanager
def sending(wire: Wire, receiver: Receiver, secret: str | None = SECRET) -> Iterator[None]:
    """A webhook of this service, beside its other tasks."""
    services = wire.services
    settings = Settings(webhook_url=ADDRESS, webhook_secret=secret and SecretStr(secret))
    webhook = Webhook(
        services.log, services.store, settings, services.telemetry, connect=receiver.client
    )

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(webhook.run())

    task = wire.run(start())
    wire.sleep(1.5 * LOOK_SECONDS)
    yield
    task.cancel()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def refuse(status: int) -> Status:
    async def refused() -> int:
        return status

    return refused


async def never() -> int:
    return await asyncio.get_running_loop().create_future()


def attempts(wire: Wire) -> dict[str, float]:
    """Those for the shop, by outcome."""
    found, name = wire.metrics(), 'forage_webhook_attempts_total{{experiment="shop",outcome="{}"}}'
    return {outcome: found[name.format(outcome)] for outcome in ("accepted", "failed", "given_up")}


def share(wire: Wire, value: float, reason: str = "") -> None:
    body = {"share": value, "reason": reason}
    assert wire.put("/experiments/shop/policies/linucb/share", body).status_code == 200


def test_a_change_is_sent_with_who_when_and_why_in_a_sentence(
    wire: Wire, receiver: Receiver
) -> None:
    with sending(wire, receiver):
        share(wire, 0.5, "too few clicks")
        wire.sleep(LOOK_SECONDS)
    listed = wire.get("/experiments/shop/changes").json()["changes"]
    assert receiver.messages == [
        {"id": f"shop/{change['position']}", "experiment": "shop", **change}
        for change in reversed(listed)
    ]
    assert receiver.messages[-1]["sentence"] == (
        "somebody set the share of 'linucb' to 0.5: 'too few clicks'"
    )
    [_, request] = receiver.got
    assert (request.method, str(request.url)) == ("POST", ADDRESS)
    assert request.headers["Content-Type"] == "application/json"


def test_the_signature_is_that_of_the_time_and_the_body(wire: Wire, receiver: Receiver) -> None:
    with sending(wire, receiver):
        now = wire.clock.time()
    [request] = receiver.got
    at = request.headers["Forage-Signature"].partition(",")[0].removeprefix("t=")
    signed = hmac.new(SECRET.encode(), f"{at}.".encode() + request.content, hashlib.sha256)
    assert request.headers["Forage-Signature"] == f"t={at},v1={signed.hexdigest()}"
    assert now - 2 * LOOK_SECONDS - 1 < int(at) <= now


def test_without_a_secret_nothing_is_signed(wire: Wire, receiver: Receiver) -> None:
    with sending(wire, receiver, secret=None):
        pass
    [request] = receiver.got
    assert "Forage-Signature" not in request.headers


def test_what_visitors_are_not_served_otherwise_by_is_not_sent(
    wire: Wire, receiver: Receiver
) -> None:
    with sending(wire, receiver):
        wire.put("/experiments/shop/arms/rope", {"features": {"category": "toy"}})
        wire.select(unit="ann")
        wire.delete("/units/ann")
        wire.post("/experiments/shop/policies/linucb/reset")
        wire.delete("/experiments/shop")
        wire.sleep(LOOK_SECONDS)
    assert [message["kind"] for message in receiver.messages] == ["defined", "reset", "deleted"]


def test_a_refused_change_is_sent_again_later_and_later_and_the_next_ones_wait(
    wire: Wire, receiver: Receiver
) -> None:
    with sending(wire, receiver):
        receiver.status["shop/2"] = refuse(500)
        share(wire, 0.5)
        share(wire, 0.25)
        wire.sleep(20.0)
        assert receiver.ids == ["shop/1", *["shop/2"] * 5]
        waits = [later - at for at, later in zip(receiver.at[1:], receiver.at[2:], strict=False)]
        assert waits == pytest.approx([1.0, 2.0, 4.0, 8.0])
        assert attempts(wire) == {"accepted": 1, "failed": 5, "given_up": 0}
        del receiver.status["shop/2"]
        wire.sleep(16.0)
    assert receiver.ids == ["shop/1", *["shop/2"] * 6, "shop/3"]
    assert attempts(wire) == {"accepted": 3, "failed": 5, "given_up": 0}


@pytest.mark.parametrize("status", [302, 404, 500])
def test_only_2xx_accepts(wire: Wire, receiver: Receiver, status: int) -> None:
    receiver.status["shop/1"] = refuse(status)
    with sending(wire, receiver):
        wire.sleep(0.5)
    assert receiver.ids == ["shop/1"] * 2


def test_a_receiver_that_does_not_answer_is_left_after_a_while(
    wire: Wire, receiver: Receiver
) -> None:
    receiver.status["shop/1"] = never
    with sending(wire, receiver):
        wire.sleep(ANSWER_SECONDS)
    assert receiver.at[1] - receiver.at[0] == pytest.approx(ANSWER_SECONDS + 1.0)


def test_a_receiver_that_cannot_be_reached_is_tried_again(wire: Wire, receiver: Receiver) -> None:
    async def down() -> int:
        raise httpx.ConnectError("connection refused")

    receiver.status["shop/1"] = down
    with sending(wire, receiver):
        assert attempts(wire) == {"accepted": 0, "failed": 2, "given_up": 0}


def test_an_hour_after_a_change_it_is_given_up_with_one_line(
    wire: Wire, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status["shop/1"] = refuse(503)
    with sending(wire, receiver):
        wire.sleep(GIVE_UP_SECONDS)
        tried = len(receiver.got)
        waits = [later - at for at, later in zip(receiver.at, receiver.at[1:], strict=False)]
        assert max(waits) == pytest.approx(LONGEST_WAIT_SECONDS)
        share(wire, 0.5)
        wire.sleep(GIVE_UP_SECONDS)
    assert receiver.ids == [*["shop/1"] * tried, "shop/2"]
    assert attempts(wire) == {"accepted": 1, "failed": tried - 1, "given_up": 1}
    [line] = [each for each in caplog.messages if "webhook" in each]
    assert line == ("experiment shop: the webhook never got the change at position 1: status 503")


def test_one_experiment_does_not_wait_for_another(wire: Wire, receiver: Receiver) -> None:
    receiver.status["shop/1"] = never
    with sending(wire, receiver):
        wire.put("/experiments/other", wire.definition())
        wire.sleep(2 * LOOK_SECONDS)
    assert receiver.ids == ["shop/1", "other/1"]


def test_a_process_that_does_not_lead_sends_nothing_until_it_does(
    wire: Wire, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: Log = wire.services.log
    monkeypatch.setattr(type(log.presence), "leads", False)
    with sending(wire, receiver):
        share(wire, 0.5)
        wire.sleep(REPEATED_SECONDS + 10.0)
        share(wire, 0.25)
        wire.sleep(10.0)
        assert receiver.ids == []
        monkeypatch.setattr(type(log.presence), "leads", True)
        wire.sleep(LOOK_SECONDS)
        assert receiver.ids == ["shop/3"]  # its predecessor has sent the earlier ones
        monkeypatch.setattr(type(log.presence), "leads", False)
        share(wire, 0.125)
        wire.sleep(LOOK_SECONDS)
        assert receiver.ids == ["shop/3"]


def test_a_process_that_leads_no_longer_stops_to_try(
    wire: Wire, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status["shop/1"] = refuse(500)
    with sending(wire, receiver):
        tried = len(receiver.got)
        monkeypatch.setattr(type(wire.services.log.presence), "leads", False)
        wire.sleep(100.0)
    assert len(receiver.got) == tried


def test_a_restart_repeats_the_last_minute_under_the_same_ids(receiver: Receiver) -> None:
    store = MemoryStore()
    with serving(store) as wire, sending(wire, receiver):
        wire.sleep(2 * REPEATED_SECONDS)
        share(wire, 0.5)
        wire.sleep(LOOK_SECONDS)
        clock = wire.services.clock
    with serving(store, clock=clock) as wire, sending(wire, receiver):
        pass
    assert receiver.ids == ["shop/1", "shop/2", "shop/2"]


def test_a_log_that_cannot_be_read_delays_a_change(receiver: Receiver) -> None:
    disk = Disk()
    with serving(disk) as wire, sending(wire, receiver):
        share(wire, 0.5)
        disk.gone = True
        wire.sleep(2.5)
        assert receiver.ids == ["shop/1"]
        assert attempts(wire)["failed"] == 2
        disk.gone = False
        wire.sleep(2.0)
        assert receiver.ids == ["shop/1", "shop/2"]


class Hook(BaseHTTPRequestHandler):
    """Accepts all, and keeps the bodies."""

    got: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_service_with_an_address_sends_to_it() -> None:
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        with serving(clock=SetClock(), webhook_url=address) as wire:
            wire.until(lambda: bool(Hook.got))
        server.shutdown()
    assert [json.loads(body)["id"] for body in Hook.got] == ["shop/1"]
