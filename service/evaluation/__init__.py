"""Off-policy evaluation: what another policy would have earned on the log, and how sure that is."""
