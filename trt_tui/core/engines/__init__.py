"""Engines as TensorRT makes them: what became of each layer, and what is tried if a build is refused."""
