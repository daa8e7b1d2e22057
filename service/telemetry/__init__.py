"""Metrics, drift and log lines, which every part of a process writes to."""
