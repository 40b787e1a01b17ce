"""TODO: tidegate/connectors/files."""
