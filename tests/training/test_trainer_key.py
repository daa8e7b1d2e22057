"""The trainer and a service that asks for a key."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.errors import ConfigurationError
from service.settings import Settings
from service.training.trainer import _hand_over

pytestmark = pytest.mark.process


@pytest.mark.parametrize("status", [401, 403])
def test_a_trainer_that_is_refused_ends_and_says_what_it_needs(status: int) -> None:
    """Training the same again would end in the same refusal, at the cost of a training each."""
    named: Any = SimpleNamespace(name="shop")

    async def hand_over() -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(status))
        async with httpx.AsyncClient(base_url="http://a", transport=transport) as client:
            await _hand_over(client, named, named, named, b"artifact")

    with pytest.raises(ConfigurationError, match=f"answers {status}: set FORAGE_KEY"):
        asyncio.run(hand_over())


def test_the_key_of_the_settings_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORAGE_KEY", "fk_secret")
    settings = Settings()
    assert settings.key_headers == {"Authorization": "Bearer fk_secret"}
    assert "fk_secret" not in repr(settings)
    monkeypatch.setenv("FORAGE_KEY", "")
    assert Settings().key_headers == {}
