"""TODO: tidegate/operators/aggregate."""
