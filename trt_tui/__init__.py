"""trt-tui: finds the layers of a network that lose accuracy in low precision, and raises their precision."""

import os

from trt_tui import module_path

module_path.remove_current_folder_from_path()  # before any module that a file of the current folder could replace
from trt_tui import lazy_imports  # noqa: E402

__version__ = "0.3.0"

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
"""ONNX Runtime reads this variable when it is loaded; 0 and an empty value would leave its telemetry on."""

lazy_imports.install_lazy_finder()
