"""Tests of the benchmark programs: their queries, their comparisons and their command lines."""
