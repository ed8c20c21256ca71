"""Sfumato: publish what is useful about private data under one privacy budget."""
