"""Per-example gradients by compilation: private rows only ever meet a graph of pure tensor operations."""
