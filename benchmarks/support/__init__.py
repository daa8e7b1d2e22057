"""Services and servers that benchmarks and tests start."""
