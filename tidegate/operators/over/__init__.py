"""TODO: tidegate/operators/over."""
