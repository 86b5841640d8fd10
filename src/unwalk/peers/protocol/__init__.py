"""The rules and formats that all peers share, as pure functions."""
