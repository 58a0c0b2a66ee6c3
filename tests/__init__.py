"""Tests, and the programs that measure; importing `trt_tui` first keeps ONNX Runtime's telemetry off in all of them."""

import trt_tui  # noqa: F401
