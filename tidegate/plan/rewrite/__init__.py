"""TODO: tidegate/plan/rewrite."""
