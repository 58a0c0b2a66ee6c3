"""Engines built or previewed by TensorRT: their layers, the implementation of each group, and the fallbacks after a
refusal."""
