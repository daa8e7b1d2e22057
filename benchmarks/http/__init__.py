"""The service over HTTP against what it could be at most, and what one would write instead."""
