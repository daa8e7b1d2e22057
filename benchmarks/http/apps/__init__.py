"""The peers of the service: ASGI applications, served by uvicorn."""
