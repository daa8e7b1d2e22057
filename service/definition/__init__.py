"""Experiments: their definition and its checks."""
