"""Tidegate: streaming SQL for Python on Apache Spark."""
