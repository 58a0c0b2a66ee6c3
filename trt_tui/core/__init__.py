"""The computations of the program, without backends and user interface."""
