"""Live drills: a service is broken in earnest, and its alerts have to fire in time."""
