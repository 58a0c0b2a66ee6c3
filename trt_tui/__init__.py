"""trt-tui: see which layers of a network lose accuracy in low precision, and put them back."""

import os

from trt_tui import late, module_path

__version__ = "0.2.0"

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
"""ONNX Runtime reads it when it is loaded; 0 and an empty value would leave its telemetry on."""

module_path.leave_current_folder()
late.install()
