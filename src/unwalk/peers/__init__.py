"""Real peers: a daemon that takes the token, does its visit and hands it on; no server anywhere."""
