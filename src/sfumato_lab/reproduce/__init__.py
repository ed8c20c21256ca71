"""Published tables and systems, beside ours."""
