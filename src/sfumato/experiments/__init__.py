"""Recipes: each published table and source system as one small file with a `run`."""
