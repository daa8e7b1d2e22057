"""The process of `forage serve`: its socket, its signals, its memory and its trainer."""
