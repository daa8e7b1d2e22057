"""Metrics, drift and the log of the process."""
