"""TODO: tidegate/connectors/kafka."""
