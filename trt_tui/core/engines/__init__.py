"""Engines as TensorRT makes them: what became of each layer, and what is tried where a build is refused."""
