"""Policies, heads and networks: arrays and random generators, without events or stores."""
