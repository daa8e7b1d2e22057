"""What a service does with its log beside requests: expiry, retention, erasure."""
