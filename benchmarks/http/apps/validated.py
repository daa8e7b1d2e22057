"""The same answer through FastAPI and pydantic, without any work."""

from fastapi import FastAPI

from benchmarks.http.apps.echo import ANSWER
from benchmarks.http.apps.wire import Answer, Asked

app = FastAPI()


@app.post("/select")
async def select(asked: Asked) -> Answer:
    """Validate the request and serialise the answer."""
    return Answer.model_validate(ANSWER)
