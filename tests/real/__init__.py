"""Real systems for tests, fetched and started here: Python and Java are all that is needed."""
