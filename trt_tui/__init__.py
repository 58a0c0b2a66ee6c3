"""trt-tui: see which layers of a network lose accuracy in low precision, and put them back."""

__version__ = "0.1.0"
