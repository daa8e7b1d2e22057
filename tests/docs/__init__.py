"""The documentation is held to what it says: examples run, links lead somewhere."""
