"""What computes: ONNX Runtime, TensorRT and TensorRT-RTX, behind the protocols of `trt_tui.core.runner`."""
