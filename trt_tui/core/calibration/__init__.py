"""Ranges of activations: measured, chosen by a method, read from and written as TensorRT's cache."""
