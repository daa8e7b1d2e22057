"""Decide, settle, administer, explain."""
