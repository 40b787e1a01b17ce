"""TODO: tidegate/compile."""
