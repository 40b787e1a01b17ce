"""TODO: tidegate/session."""
