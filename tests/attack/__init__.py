"""schemathesis against the pinned OpenAPI: `make attack`, and a short form as a test."""
