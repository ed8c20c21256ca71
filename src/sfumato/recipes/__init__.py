"""What `train`, `tune` and Python users run by default."""
