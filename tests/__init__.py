"""Tests, and the programs that measure; importing `trt_tui` first keeps ONNX Runtime's telemetry off in all of them."""

import os
from pathlib import Path

import trt_tui  # noqa: F401

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Read when numpy is loaded: threads that wait for parts of small products take more time than the products."""

TESTS = Path(__file__).parent
ROOT = TESTS.parent
