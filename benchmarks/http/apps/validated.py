"""The same answer through FastAPI and pydantic, with nothing behind it."""

from fastapi import FastAPI

from benchmarks.http.apps.echo import ANSWER
from benchmarks.http.apps.wire import Answer, Asked

app = FastAPI()


@app.post("/select")
async def select(asked: Asked) -> Answer:
    """Validate, answer, serialise."""
    return Answer.model_validate(ANSWER)
