"""TODO: tidegate/plan/bind."""
