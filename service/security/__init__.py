"""Tokens, keys and access."""
