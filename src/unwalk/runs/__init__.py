"""Runs: settings in, walks carried out and measured, results and files out.

This is the one place where tasks, walks, methods, privacy and engines meet.
"""
