"""The least cost of an answer under uvicorn: the same 200 bytes to every request."""

import json
from typing import Any

ANSWER = {"decision_id": "A" * 130, "arm": "1007", "propensity": 0.25, "logged": True}
BODY = json.dumps(ANSWER).encode()
assert len(BODY) == 200
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"200")]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the body and answer."""
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send({"type": "http.response.body", "body": BODY})
