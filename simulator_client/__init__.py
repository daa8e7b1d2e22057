"""The simulator client: replays worlds with a known optimum against Forage over HTTP."""
