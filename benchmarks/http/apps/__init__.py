"""What the service is compared with: an ASGI application each, served by uvicorn."""
