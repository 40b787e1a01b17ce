"""TODO: tidegate/operators/join."""
