"""How the cost of a decision and of the log grows with what they are asked to hold."""
