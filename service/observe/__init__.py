"""What people look at: overviews, explanations, metrics of the state."""
