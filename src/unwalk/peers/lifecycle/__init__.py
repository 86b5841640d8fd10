"""One peer from its training to its last deletion, chapter after chapter."""
