"""Settings of a process: from a file of variables, the environment (prefix FORAGE_) and options."""

import base64
import binascii
import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from service.errors import ConfigurationError
from service.security.addresses import IpNetwork, network_of
from service.security.hosts import host_of, origin_of

ENVIRONMENT_PREFIX = "FORAGE_"

ENV_FILE = "FORAGE_ENV_FILE"
ENCODING = "utf-8-sig"
"""Encoding of that file: UTF-8, with or without a byte order mark."""

SECRET_SETTINGS = ("store", "store_listen", "token_keys", "key", "webhook_secret")
"""Settings whose value may stand in a file: FORAGE_KEY_FILE names one that holds FORAGE_KEY."""

FILE = "_FILE"

URLS = frozenset({"store", "store_listen", "url", "learner_url", "cors_origins", "webhook_url"})
"""Settings whose values hold `://`."""

SERVICE_LINK = re.compile(
    r"FORAGE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_[A-Z]+(_(PROTO|PORT|ADDR))?)"
)
"""Variables that Kubernetes sets beside a Service whose name begins with forage."""


def is_service_link(setting: str, value: object) -> bool:
    """Say whether Kubernetes set the variable of this setting:
    FORAGE_PORT=tcp://10.96.0.12:8000."""
    return setting not in URLS and isinstance(value, str) and "://" in value


class _Own(PydanticBaseSettingsSource):
    """A source without what Kubernetes sets."""

    def __init__(self, settings: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        found = self._source()
        return {name: value for name, value in found.items() if not is_service_link(name, value)}


def variables_of(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of the environment and those of the file that FORAGE_ENV_FILE names, in
    upper case."""
    file = dotenv_values(environment.get(ENV_FILE) or os.devnull, encoding=ENCODING)
    return (
        {name.upper(): value for name, value in environment.items()},
        {name.upper(): value or "" for name, value in file.items()},
    )


def secrets_of(*places: Mapping[str, str]) -> dict[str, str]:
    """Read the files of secrets: of each secret, in the first place that has its variable or that
    of its file. Raises ConfigurationError."""
    found = {}
    for name in SECRET_SETTINGS:
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        place = next((one for one in places if one.get(variable) or one.get(variable + FILE)), {})
        path = place.get(variable + FILE)
        if not path:
            continue
        if place.get(variable):
            raise ConfigurationError(f"{variable} and {variable}{FILE} are both set: set one")
        try:
            secret = Path(path).read_text(ENCODING).strip()
        except OSError as fault:
            raise ConfigurationError(f"{variable}{FILE}: {path}: {fault.strerror}") from fault
        except UnicodeDecodeError as fault:
            raise ConfigurationError(f"{variable}{FILE}: {path} is not UTF-8") from fault
        if not secret:
            raise ConfigurationError(f"{variable}{FILE}: {path} is empty")
        found[name] = secret
    return found


def commas(read: Callable[[str], object]) -> BeforeValidator:
    """Several values, with commas between them in the environment."""

    def split(value: object) -> object:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list):
            return value
        return [
            read(part) if isinstance(part, str) else part
            for part in parts
            if not isinstance(part, str) or part.strip()
        ]

    return BeforeValidator(split)


class Settings(BaseSettings):
    """Every field is an environment variable: `store` is FORAGE_STORE."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_file_encoding=ENCODING, extra="ignore", frozen=True
    )

    store: str = Field(
        "sqlite:///forage.db",
        description="Where log and snapshots live: sqlite:///path, redis://host:port/db, "
        "postgresql://host/database, memory://.",
    )
    store_listen: str | None = Field(
        None,
        description="URL of the same PostgreSQL around a pooler, for the one connection that is "
        "told of commits. Left out: that of the store; behind a pooler the service asks ten times "
        "a second.",
        repr=False,
    )
    redis_replicas: NonNegativeInt = Field(
        0,
        description="Replicas of Redis that must hold a commit before it is acknowledged (WAIT). "
        "With fewer, the log counts as gone; set `min-replicas-to-write` in Redis as well.",
    )
    role: Literal["learner", "decider"] = Field(
        "learner",
        description="What the process is for. learner: it folds the log and answers all routes. "
        "decider: it answers /select, /reward and activations by what a learner publishes "
        "(docs/operations.md).",
    )
    learner_url: str | None = Field(
        None,
        description="Where a decider sends callers for all other routes. Left out: it names none.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(
        8000, description="Port to listen on; 0 takes a free one."
    )
    workers: PositiveInt | Literal["auto"] = Field(
        1,
        description="Processes of the service on this host, which share its port and its log "
        "(docs/operations.md#workers); auto: one for each core.",
    )
    experiments: Annotated[list[Path], NoDecode, commas(Path)] = Field(
        [],
        description="TOML files of experiments to define at the start where the log has none of "
        "their name: commas separate them, options repeat. Left out, with an empty log: the "
        "Zooplus example.",
    )
    default_experiment: str | None = Field(
        None,
        description="Experiment of requests that name none. Left out: the only one; with several, "
        "a request has to name its experiment.",
    )
    trainer: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Start a trainer process beside the service; auto: with sqlite and torch only.",
    )
    url: str = Field(
        "http://127.0.0.1:8000", description="Where trainer and exporter reach the service."
    )
    token_keys: Annotated[list[bytes], NoDecode] = Field(
        [],
        description="Secrets of decision tokens, base64, comma-separated: the first seals, all "
        "open. Left out: one that the store keeps (a row of a database, a Redis key).",
        repr=False,
    )
    keys: Path | None = Field(
        None,
        description="File of API keys, as `forage keys` keeps it (docs/keys.md): requests then "
        "need one. Left out: none do, and the service listens on loopback alone.",
    )
    open: bool = Field(
        False,
        description="Accept requests without keys on any address; your network must restrict them.",
    )
    key: SecretStr | None = Field(
        None,
        description="Key that trainer, exporter and import send to the service (scope admin).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of the log."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="Format of the log on stderr; auto: console on a terminal, else json."
    )
    webhook_url: str | None = Field(
        None,
        description="Where the service sends changes of experiments that people should hear of "
        "(docs/operations.md). Left out: nowhere.",
        repr=False,
    )
    webhook_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="Secret that signs what is sent there, 16 characters or more. Left out: "
        "nothing is signed.",
    )
    snapshot_every_events: PositiveInt = Field(
        20_000,
        description="Events between two snapshots, or half of the arms above 20,000 arms where "
        "that is more; one more is taken on shutdown.",
    )
    expiry_seconds: PositiveFloat = Field(
        1.0, description="Time between two searches for decisions past `reward_by`."
    )
    select_log_seconds: PositiveFloat = Field(
        0.2,
        description="Longest that /select waits for its row in the log; then it answers with "
        "`logged` false, and the others do at once until that commit has ended.",
    )
    retention_days: PositiveFloat | None = Field(
        None,
        description="Age from which decisions and events are trimmed once nothing needs them: no "
        "open decision, snapshot, archive or training. Left out: never.",
    )
    trim_seconds: PositiveFloat = Field(60.0, description="Time between two trimmings.")
    evaluation_seconds: PositiveFloat = Field(
        120.0,
        description="Longest that an evaluation, a verdict or prices of rules over HTTP may take.",
    )
    evaluation_queue: PositiveInt = Field(
        4, description="Evaluations, and verdicts, that may wait while another runs."
    )
    buffer_bytes: PositiveInt = Field(
        67_108_864,
        description="Memory for decisions that wait while the log is gone; the metric "
        "`forage_buffer_seconds` says how long an outage it bridges.",
    )
    max_connections: PositiveInt | None = Field(
        None,
        description="Open connections. Left out: 4,096, or fewer where the limit of open files is "
        "low.",
    )
    keep_alive_seconds: PositiveInt = Field(
        75,
        description="Time that an idle connection stays open. Keep it above that of a proxy in "
        "front, often 60: else the proxy sends requests into connections that close.",
    )
    drain_seconds: NonNegativeFloat = Field(
        0.0,
        description="Time after SIGTERM for which the service goes on answering, with `Connection: "
        "close`, while /readyz answers 503.",
    )
    max_pending: PositiveInt = Field(
        512,
        description="Decisions under way beyond which further ones are refused (503). Rewards: "
        "twice as many.",
    )
    trusted_proxies: Annotated[list[IpNetwork], NoDecode, commas(network_of)] = Field(
        [],
        description="Networks of proxies in front of the service, comma-separated: 10.0.0.0/8,::1. "
        "Their X-Forwarded-For or Forwarded names the client.",
    )
    max_head_bytes: PositiveInt = Field(
        16_384, description="Bytes of the request line and headers, and of trailers."
    )
    max_body_bytes: PositiveInt = 1_048_576
    max_artifact_bytes: PositiveInt = Field(
        268_435_456, description="Most bytes of one trained version, as the trainer hands it over."
    )
    experiment_memory_bytes: PositiveInt = Field(
        536_870_912,
        description="Most memory of an experiment, estimated from its definition and its arms.",
    )
    max_arms: PositiveInt = Field(10_000, description="Arms in one request.")
    max_top_k: PositiveInt = 100
    max_decision_bytes: PositiveInt = Field(
        1_048_576,
        description="Most bytes of one decision in the log, where the request names its arms.",
    )
    max_select_memory_bytes: PositiveInt = Field(
        1_073_741_824, description="Memory that one decision may take, by an estimate."
    )
    max_batch: PositiveInt = 1_000
    cors_origins: Annotated[list[str], NoDecode, commas(origin_of)] = Field(
        [],
        description="Origins whose pages may ask, comma-separated: https://shop.example. "
        "Left out: only pages that the service serves itself.",
    )

    allowed_hosts: Annotated[list[str], NoDecode, commas(host_of)] = Field(
        [],
        description="Hosts that requests may name, comma-separated: forage.example, "
        "*.forage.example. Without keys any other is refused (421) but loopback and the address "
        "listened on; with keys, where this is set.",
    )

    _options: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Own(settings_cls, env_settings), _Own(settings_cls, dotenv_settings)

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Read options, the environment, and the file that FORAGE_ENV_FILE names: the first that
        has a setting, or names the file of a secret, holds. Raises ConfigurationError."""
        file = os.environ.get(ENV_FILE) or None
        if file is not None:
            try:
                Path(file).read_text(ENCODING)
            except OSError as fault:
                raise ConfigurationError(f"{ENV_FILE}: {file} cannot be read") from fault
            except UnicodeDecodeError as fault:
                raise ConfigurationError(f"{ENV_FILE}: {file} is not UTF-8") from fault
        secrets = secrets_of(*variables_of(os.environ))
        try:
            settings = cls(_env_file=file, **{**secrets, **options})
        except ValidationError as error:
            from service.definition.faults import faults_of

            faults = faults_of(error.errors(), dict.fromkeys(cls.model_fields))
            lines = [
                f"{ENVIRONMENT_PREFIX}{fault.path.upper()}{FILE if fault.path in secrets else ''}: "
                f"{fault.message}"
                for fault in faults
            ]
            raise ConfigurationError("\n".join(lines)) from error
        settings._options = dict(options)
        return settings

    def read_again(self) -> Self:
        """Read the settings as they are now, with the same options. Raises ConfigurationError."""
        return self.read(self._options)

    def fixed(self, **options: Any) -> Self:
        """Return these settings with others in place of some, also when they are read again."""
        settings = self.model_copy(update=options)
        settings._options = {**self._options, **options}
        return settings

    @classmethod
    def ignored(cls, environment: Mapping[str, str]) -> list[str]:
        """Return a warning for each variable, of these and of FORAGE_ENV_FILE, that sets
        nothing."""
        files = [name + FILE.lower() for name in SECRET_SETTINGS]
        settings = [*cls.model_fields, *files]
        known, warnings = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in settings}, list[str]()
        own, file = variables_of(environment)
        for name, value in {**file, **own}.items():
            if not name.startswith(ENVIRONMENT_PREFIX) or name == ENV_FILE:
                continue
            if name in known:
                if is_service_link(name[len(ENVIRONMENT_PREFIX) :].lower(), value):
                    warnings.append(
                        f"{name}={value} is ignored: Kubernetes sets it beside a Service of this "
                        f"name. enableServiceLinks: false in the pod leaves {name} to you"
                    )
            elif not SERVICE_LINK.fullmatch(name):
                near = difflib.get_close_matches(
                    name[len(ENVIRONMENT_PREFIX) :].lower(), settings, 1, 0.7
                )
                named = f": did you mean {ENVIRONMENT_PREFIX}{near[0].upper()}?" if near else ""
                hint = named or " (docs/configuration.md)"
                warnings.append(f"{name} is ignored, it is no setting{hint}")
        return sorted(warnings)

    @field_validator(
        "keys",
        "key",
        "default_experiment",
        "learner_url",
        "store_listen",
        "webhook_url",
        "webhook_secret",
        mode="before",
    )
    @classmethod
    def _none_where_empty(cls, value: object) -> object:
        return None if value == "" else value

    @property
    def key_headers(self) -> dict[str, str]:
        """Headers of a request to a service."""
        return {"Authorization": f"Bearer {self.key.get_secret_value()}"} if self.key else {}

    @field_validator("webhook_url", "learner_url")
    @classmethod
    def _address_of_http(cls, value: str | None, about: ValidationInfo) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            webhook = about.field_name == "webhook_url"
            example = "hooks.example/forage" if webhook else "learner.example"
            raise ValueError(f"write it as https://{example}")
        return value

    @field_validator("token_keys", mode="before")
    @classmethod
    def _decode_keys(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            keys = [base64.b64decode(part, validate=True) for part in value.split(",") if part]
        except binascii.Error as fault:
            raise ValueError("write base64, for example from: openssl rand -base64 32") from fault
        if any(len(key) < 16 for key in keys):
            raise ValueError("a key has at least 16 bytes: openssl rand -base64 32")
        return keys
