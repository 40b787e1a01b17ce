"""Tests with real systems, which they download and start; they need only Python and Java."""
