"""Engines that TensorRT builds or previews: their layers, the implementations of groups, and the fallback ladder."""
