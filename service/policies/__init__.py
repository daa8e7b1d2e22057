"""Policies: an encoder, a head and a rule each, in one table (`service.policies.table`)."""
