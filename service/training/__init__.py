"""The trainer: a process of its own, and the only code that imports torch."""
