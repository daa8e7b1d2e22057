"""A file of API keys, and the keys that are in it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from service.security.keys import ApiKey, changing, digest_of, mint

PAGE = "https://shop.example"
EARLIER = datetime.now(UTC) - timedelta(days=2)


class Keys:
    """path: for `Settings(keys=...)`. A key is found by the name under which it was added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def add(self, name: str, *scopes: Any, **more: Any) -> str:
        key_id, text = mint()
        key = ApiKey(
            **{"id": key_id, "name": name, "scopes": scopes, "created": EARLIER,
               "digest": digest_of(text.encode()).hex(), **more}
        )  # fmt: skip
        with changing(self.path) as keys:
            keys.append(key)
        self._texts[name], self._ids[name] = text, key_id
        return text

    def change(self, name: str, **fields: Any) -> None:
        """Whatever the file then holds."""
        content = json.loads(self.path.read_text())
        [found] = [each for each in content["keys"] if each["id"] == self._ids[name]]
        found.update(fields)
        self.path.write_text(json.dumps(content))

    def text(self, name: str) -> str:
        return self._texts[name]

    def headers(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._texts[name]}"}


def standard(path: Path) -> Keys:
    """A key of each scope, and of each way to be refused. They are of the experiment `shop`, where
    a key is bound to one at all."""
    keys = Keys(path)
    for scope in ("select", "reward", "admin", "metrics"):
        keys.add(scope, scope)
    for name, fields in (("expired", {"expires": EARLIER}), ("revoked", {"revoked": EARLIER})):
        keys.add(name, "select", "reward", "admin", "metrics", **fields)
    keys.add("page", "select", "reward", experiments=["shop"], origins=[PAGE])
    keys.add("bound", "select", "reward", "admin", experiments=["shop"])
    keys.add("elsewhere", "select", "reward", "admin", experiments=["elsewhere"])
    return keys


def body_of(path: str) -> Any:
    """What a route takes, where it looks at the experiment after the body."""
    bodies = {
        "/select": {"context": {"persona": "cat"}},
        "/select/batch": {"requests": [{"context": {"persona": "cat"}}]},
        "/reward": {"decision_id": "x", "reward": 1.0},
        "/reward/batch": {"requests": [{"decision_id": "x", "reward": 1.0}]},
    }
    return bodies.get(path)
