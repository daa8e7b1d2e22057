"""`make attack`: schemathesis against the pinned OpenAPI, then hostile families against a service
with two tenants. A short form of each is a test."""
