"""Synthetic images of nobody: drawings moved to where private images lie, labelled by a private head."""
