"""A peer's own records and the files that they come from."""
