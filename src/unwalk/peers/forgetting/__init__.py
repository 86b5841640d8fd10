"""Deletion requests: how they are met, erased and certified."""
