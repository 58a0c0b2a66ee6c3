"""Exporters, which write a config in the formats of TensorRT and of other tools, and as reports."""
