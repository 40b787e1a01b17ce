"""TODO: tidegate/operators/top_n."""
