"""Data noised before it leaves the person, and learning that knows the noise."""
