"""TODO: tidegate/connectors/generator."""
