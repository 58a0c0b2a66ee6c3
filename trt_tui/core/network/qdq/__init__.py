"""Quantized and typed files: their Q/DQ nodes, the FP32 network behind them, and the check of `lint`."""
