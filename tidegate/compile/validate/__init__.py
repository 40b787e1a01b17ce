"""TODO: tidegate/compile/validate."""
