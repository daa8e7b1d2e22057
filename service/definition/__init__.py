"""Experiments: features, settings and their checks."""
