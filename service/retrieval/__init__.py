"""Shortlists of large catalogues: the index of arms, and the search in it."""
