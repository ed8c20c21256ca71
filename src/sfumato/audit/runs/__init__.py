"""Attacks on whole runs of our own algorithms."""
