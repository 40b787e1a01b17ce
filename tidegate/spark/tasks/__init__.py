"""TODO: tidegate/spark/tasks."""
