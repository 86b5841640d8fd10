"""How messages and tokens travel between peers."""
