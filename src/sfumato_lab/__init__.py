"""What people learn from: the demo, published systems made again, simulators, drawings, synthetic images.

It uses nothing but the public names of `sfumato`, which finds its commands and drawings by entry points.
"""
