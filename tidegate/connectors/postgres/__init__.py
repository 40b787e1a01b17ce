"""TODO: tidegate/connectors/postgres."""
