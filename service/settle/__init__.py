"""Settlement of decisions by their rewards, or by the default reward."""
