"""TODO: tidegate/connectors/formats."""
