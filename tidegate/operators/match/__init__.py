"""TODO: tidegate/operators/match."""
