"""The endpoint of a peer for its own organisation."""
