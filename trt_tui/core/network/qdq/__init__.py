"""Quantized and typed files: their Q/DQ nodes, the FP32 network derived from them, and the check of the command `lint`."""
