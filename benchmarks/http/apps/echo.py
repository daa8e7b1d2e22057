"""The least that an answer can cost under uvicorn: a body of 200 bytes, whatever is asked."""

import json
from typing import Any

ANSWER = {"decision_id": "A" * 130, "arm": "1007", "propensity": 0.25, "logged": True}
BODY = json.dumps(ANSWER).encode()
assert len(BODY) == 200
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"200")]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the body, answer."""
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send({"type": "http.response.body", "body": BODY})
