"""The backends that execute networks or build engines: ONNX Runtime, TensorRT and TensorRT-RTX.

Each backend implements the protocols of `trt_tui.core.runner`.
"""
