"""Forage: an online recommendation service that learns from every click."""

__version__ = "0.2.0"
