"""What a URL of PostgreSQL may say, without a server."""

import asyncio
import subprocess
import sys

import pytest

from service.errors import ConfigurationError, StoreUnavailable
from service.log.stores import open_store
from service.log.stores.postgres import durability
from service.log.stores.postgres_connection import name_of, settings_of


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@host:port/db",
        "postgresql://u:hunter2@host/db?timeout=3",
        "postgresql://u:hunter2/@[::1",
        "postgres://u:hunter2%ZZ@host/db",
    ],
)
def test_a_url_that_is_wrong_is_refused_with_the_form_that_is_right(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use postgresql://.*sslmode") as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u:hunter2@host/db", "postgresql://host/db"),
        ("postgres://u@one:1,two:2/db?sslmode=require", "postgresql://one,two:1,2/db"),
        ("postgres://u:a?b#hunter2@host:5433/db", "postgresql://host:5433/db"),
        ("postgresql:///db?host=/run&password=hunter2", "postgresql:///run/db"),
    ],
)
def test_a_store_is_named_without_user_password_and_options(url: str, name: str) -> None:
    assert name_of(settings_of(url)) == name


def test_no_server_is_an_outage_that_is_said_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as raised:
        asyncio.run(open_store("postgresql://user:hunter2@127.0.0.1:1/db").open())
    assert str(raised.value).startswith("postgresql://127.0.0.1:1/db: ")
    assert "refused" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if ".stores.postgres" in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'forage-bandits\[postgres\]'"):
        open_store("postgresql://127.0.0.1/db")


@pytest.mark.process
def test_another_store_needs_no_psycopg() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None; from service.log.stores import open_store; "
        "import service.app; open_store('sqlite:///forage.db'); open_store('redis://127.0.0.1')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "survives kill -9 and power loss of the PostgreSQL host."),
        ({"synchronous_commit": "local"}, "survives kill -9 and power loss"),
        ({"synchronous_standby_names": "one"}, "its loss where a synchronous standby takes over"),
        ({"synchronous_commit": "off"}, "lost when PostgreSQL crashes (synchronous_commit off)"),
        ({"fsync": "off"}, "may be lost, and the log damaged, with the host (fsync off)"),
    ],
)
def test_durability_says_what_the_settings_mean(changed: dict[str, str], said: str) -> None:
    usual = {"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}
    assert said in durability(usual | changed)
