"""The log: committer, replicas, replay, stores."""
