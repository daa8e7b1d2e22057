"""Settings from the environment: variables of others, and misspelt ones."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from service.errors import ConfigurationError
from service.settings import Settings

KUBERNETES = {
    "FORAGE_PORT": "tcp://10.96.0.12:8000",
    "FORAGE_SERVICE_HOST": "10.96.0.12",
    "FORAGE_SERVICE_PORT": "8000",
    "FORAGE_SERVICE_PORT_HTTP": "8000",
    "FORAGE_PORT_8000_TCP": "tcp://10.96.0.12:8000",
    "FORAGE_PORT_8000_TCP_PROTO": "tcp",
    "FORAGE_PORT_8000_TCP_PORT": "8000",
    "FORAGE_PORT_8000_TCP_ADDR": "10.96.0.12",
    "FORAGE_TRAINER_PORT": "tcp://10.96.0.13:8000",
    "FORAGE_TRAINER_SERVICE_HOST": "10.96.0.13",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"FORAGE_{name.upper()}", raising=False)
        monkeypatch.delenv(f"FORAGE_{name.upper()}_FILE", raising=False)
    return monkeypatch


def test_variables_of_kubernetes_are_not_settings(environment: pytest.MonkeyPatch) -> None:
    for name, value in KUBERNETES.items():
        environment.setenv(name, value)
    assert Settings.read({}).port == 8_000
    [warning] = Settings.ignored(KUBERNETES)
    assert warning.startswith("FORAGE_PORT=tcp://10.96.0.12:8000 is ignored")
    assert "enableServiceLinks" in warning


UNLINKED = ["HOST", "PORT", "TRAINER", "LOG_LEVEL", "MAX_ARMS", "TRUSTED_PROXIES"]


@pytest.mark.parametrize("place", ["environment", "file"])
@pytest.mark.parametrize("name", UNLINKED)
def test_no_setting_takes_a_service_link(
    environment: pytest.MonkeyPatch, tmp_path: Path, name: str, place: str
) -> None:
    """In the environment and in FORAGE_ENV_FILE alike."""
    variables = {f"FORAGE_{name}": "tcp://10.96.0.12:8000"}
    if place == "file":
        file = tmp_path / "env"
        file.write_text(f"FORAGE_{name}=tcp://10.96.0.12:8000\n")
        variables = {"FORAGE_ENV_FILE": str(file)}
    for variable, value in variables.items():
        environment.setenv(variable, value)
    assert Settings.read({}) == Settings()
    [warning] = Settings.ignored(variables)
    assert warning.startswith(f"FORAGE_{name}=tcp://10.96.0.12:8000 is ignored")


def test_a_file_of_settings_holds_where_kubernetes_sets_the_variable(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "env"
    file.write_text("FORAGE_PORT=8080\nFORAGE_STOER=redis://cache\n")
    environment.setenv("FORAGE_ENV_FILE", str(file))
    environment.setenv("FORAGE_PORT", "tcp://10.96.0.12:8000")
    assert Settings.read({}).port == 8_080
    assert Settings.ignored({"FORAGE_ENV_FILE": str(file)}) == [
        "FORAGE_STOER is ignored, it is no setting: did you mean FORAGE_STORE?"
    ]


def test_a_file_of_settings_is_utf8_with_or_without_a_mark(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "env"
    environment.setenv("FORAGE_ENV_FILE", str(file))
    file.write_bytes(b"\xef\xbb\xbfFORAGE_PORT=8080\nFORAGE_HOST=localhost\n")
    assert Settings.read({}).port == 8_080
    assert Settings.ignored({"FORAGE_ENV_FILE": str(file)}) == []
    file.write_bytes(b"FORAGE_HOST=\xff\n")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        Settings.read({})


def test_urls_are_settings(environment: pytest.MonkeyPatch) -> None:
    values = {
        "FORAGE_STORE": "redis://cache",
        "FORAGE_URL": "http://forage:8000",
        "FORAGE_CORS_ORIGINS": "https://shop.example",
        "FORAGE_WEBHOOK_URL": "https://hooks.example/forage",
    }
    for name, value in values.items():
        environment.setenv(name, value)
    settings = Settings.read({})
    assert (settings.store, settings.url) == ("redis://cache", "http://forage:8000")
    assert settings.cors_origins == ["https://shop.example"]
    assert settings.webhook_url == "https://hooks.example/forage"
    assert Settings.ignored(values) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PORT", "eighty", "must be an integer"),
        ("PORT", "9" * 5_001, "must be an integer of fewer digits"),
        ("PORT", "70000", "must be less than or equal to 65535"),
        ("MAX_ARMS", "1.5", "must be an integer"),
        ("TRIM_SECONDS", "soon", "must be a number"),
        ("OPEN", "perhaps", "must be true or false"),
        ("TRAINER", "onn", "must be 'auto', 'on' or 'off'; did you mean 'on'?"),
        ("WEBHOOK_URL", "hooks.example/forage", "write it as https://hooks.example/forage"),
        ("WEBHOOK_URL", "ftp://hooks.example", "write it as https://hooks.example/forage"),
        ("WEBHOOK_URL", "http://:80/forage", "write it as https://hooks.example/forage"),
        ("WEBHOOK_SECRET", "short", "must have at least 16 characters"),
    ],
)
def test_other_faults_are_refused_in_plain_words(
    environment: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    environment.setenv(f"FORAGE_{name}", value)
    with pytest.raises(ConfigurationError) as caught:
        Settings.read({})
    assert str(caught.value) == f"FORAGE_{name}: {message}"


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("FORAGE_MAX_PENDNG", ": did you mean FORAGE_MAX_PENDING?"),
        ("forage_experiment", ": did you mean FORAGE_EXPERIMENTS?"),
        ("FORAGE_XYZZY", " (docs/configuration.md)"),
    ],
)
def test_a_variable_that_is_no_setting_is_named(variable: str, hint: str) -> None:
    expected = f"{variable.upper()} is ignored, it is no setting{hint}"
    assert Settings.ignored({variable: "1", "PATH": "/bin", "FORAGEPORT": "1"}) == [expected]


SECRETS = {
    "STORE": ("redis://:secret@redis/0", "redis://:secret@redis/0"),
    "STORE_LISTEN": ("postgresql://u:secret@db/forage", "postgresql://u:secret@db/forage"),
    "TOKEN_KEYS": ("MDEyMzQ1Njc4OWFiY2RlZg==", [b"0123456789abcdef"]),
    "KEY": ("fk_1_2", SecretStr("fk_1_2")),
    "WEBHOOK_SECRET": ("0123456789abcdef", SecretStr("0123456789abcdef")),
}


@pytest.mark.parametrize("place", ["environment", "file"])
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_stand_in_a_file(
    environment: pytest.MonkeyPatch, tmp_path: Path, name: str, place: str
) -> None:
    """Named in the environment or in FORAGE_ENV_FILE; an option comes before it."""
    written, read = SECRETS[name]
    secret, file = tmp_path / "secret", tmp_path / "env"
    secret.write_text(f"{written}\n")
    variables = {f"FORAGE_{name}_FILE": str(secret)}
    if place == "file":
        file.write_text(f"FORAGE_{name}_FILE={secret}\n")
        variables = {"FORAGE_ENV_FILE": str(file)}
    for variable, value in variables.items():
        environment.setenv(variable, value)
    assert getattr(Settings.read({}), name.lower()) == read
    assert Settings.ignored(variables) == []
    assert Settings.read({"store": "memory://"}).store == "memory://"


def test_the_file_of_a_secret_is_read_again(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("fk_1_2")
    environment.setenv("FORAGE_KEY_FILE", str(file))
    settings = Settings.read({})
    file.write_text("fk_3_4")
    assert settings.read_again().key == SecretStr("fk_3_4")


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_set_once(environment: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """The environment, its files of secrets included, comes before FORAGE_ENV_FILE."""
    written, read = SECRETS[name]
    secret, file = tmp_path / "secret", tmp_path / "env"
    secret.write_text("other")
    file.write_text(f"FORAGE_{name}_FILE={secret}\n")
    environment.setenv("FORAGE_ENV_FILE", str(file))
    environment.setenv(f"FORAGE_{name}", written)
    assert getattr(Settings.read({}), name.lower()) == read
    environment.setenv(f"FORAGE_{name}_FILE", str(secret))
    with pytest.raises(ConfigurationError, match=f"FORAGE_{name} and FORAGE_{name}_FILE are both"):
        Settings.read({})
    environment.setenv(f"FORAGE_{name}", "")  # as compose files leave it out
    secret.write_text(written)
    assert getattr(Settings.read({}), name.lower()) == read


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "FORAGE_TOKEN_KEYS_FILE: .*: No such file"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"c2hvcnQ=", "FORAGE_TOKEN_KEYS_FILE: a key has at least 16 bytes"),
    ],
)
def test_a_file_without_a_secret_is_refused(
    environment: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    environment.setenv("FORAGE_TOKEN_KEYS_FILE", str(file))
    with pytest.raises(ConfigurationError, match=said):
        Settings.read({})


def test_a_file_for_what_is_no_secret_is_ignored_and_named() -> None:
    [warning] = Settings.ignored({"FORAGE_TOKEN_KEY_FILE": "/run/secrets/token"})
    assert warning == (
        "FORAGE_TOKEN_KEY_FILE is ignored, it is no setting: did you mean FORAGE_TOKEN_KEYS_FILE?"
    )
