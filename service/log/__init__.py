"""The log: writer, replay, follower, stores."""
