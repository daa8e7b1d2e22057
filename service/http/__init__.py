"""The wire: routes, schemas, errors. A route parses, calls, returns."""
