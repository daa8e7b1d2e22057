"""A decision: find experiment, policy and candidates, score, draw, record."""
