"""TODO: tidegate/connectors/memory."""
