"""Dynamic ranges of activations: their measurement, the methods that choose them, and TensorRT's calibration cache
files."""
