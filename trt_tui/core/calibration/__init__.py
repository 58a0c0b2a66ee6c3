"""Dynamic ranges of activations: their measurement, range methods, and TensorRT's calibration cache files."""
