"""TODO: tidegate/operators/store."""
