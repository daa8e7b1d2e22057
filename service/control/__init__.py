"""Does it pay? Policies compared with a control, in intervals that hold at any time."""
