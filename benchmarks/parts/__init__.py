"""What a service does beside answering requests, and what it costs."""
