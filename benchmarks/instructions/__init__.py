"""Instructions that a request takes of the processor: python -m benchmarks.instructions."""
