"""State: a fold over events."""
