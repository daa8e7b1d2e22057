"""What policies earned and what others would have earned, by the log."""
