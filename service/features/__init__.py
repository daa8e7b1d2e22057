"""Features: their declarations, and how they become numbers."""
