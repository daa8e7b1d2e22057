"""Learning compared: the same worlds and visits for Forage's policies and for today's libraries."""
