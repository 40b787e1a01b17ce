"""TODO: tidegate/operators/kernels."""
