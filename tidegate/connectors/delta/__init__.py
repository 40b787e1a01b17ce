"""TODO: tidegate/connectors/delta."""
