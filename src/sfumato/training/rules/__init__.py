"""Norms and weighted sums of per-example gradients from the operands of the products that form them."""
