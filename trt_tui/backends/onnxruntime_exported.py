"""The execution of an exported ONNX file in ONNX Runtime, loaded as in a user's own program.

Two settings differ from the defaults, so that the results are those of the ONNX standard. On processors without VNNI,
the default INT8 kernels saturate their sums at 16 bits, which no TensorRT engine does. Some releases truncate FP16
values in a QuantizeLinear, which must round them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.backends.onnxruntime_releases import CPU_PROVIDER, quantize_in_fp32, truncates_fp16_quantization
from trt_tui.core.exporters.onnx import NORMALISATION_FUSIONS
from trt_tui.errors import FAILED_ALLOCATION, InputError, convert_memory_error

PROVIDERS = {"cpu": CPU_PROVIDER, "cuda": "CUDAExecutionProvider"}
"""The execution providers of ONNX Runtime, by the names that backends use."""


class ExportedFileRunner:
    """An exported file that is loaded in ONNX Runtime, with the fusions, quantized kernels and other optimizations that
    ONNX Runtime chooses.

    Args:
        path: The path of the ONNX file.
        provider: A key of `PROVIDERS`.
        tf32: True if the CUDA provider may compute FP32 in TF32, according to the config.
        threads: The number of threads of one operator; None for ONNX Runtime's default.
        operators: The paths of custom operator libraries.

    Attributes:
        options: The options other than the defaults that ONNX Runtime needed to load the file, as a text that follows
            its name; "" if it needed none.

    Raises:
        InputError: ONNX Runtime refuses the file.
        OutOfMemoryError: An allocation failed.
        BackendUnavailableError: The provider does not work here.
    """

    def __init__(self, path: str, provider: str, *, tf32: bool = False, threads: int | None = None,
                 operators: Sequence[str] = ()) -> None:
        import onnxruntime

        if truncates_fp16_quantization():
            copy_path = Path(path).with_name(f"fp32_quantization_{Path(path).name}")
            ir.save(quantize_in_fp32(ir.load(path)), copy_path)
            path = str(copy_path)
        providers: list[str | tuple[str, dict[str, str]]] = [PROVIDERS["cpu"]]
        if provider == "cuda":
            from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

            OnnxRuntimeBackend("cuda")  # loads the provider's libraries; raises an error if it does not work
            providers.insert(0, (PROVIDERS["cuda"], {"use_tf32": str(int(tf32))}))
        # With the first entry INT8 sums do not saturate, but some operators lack a kernel. The second entry keeps every
        # Q/DQ pair. ONNX Runtime 1.32 fuses a LayerNormalization in FP16 whose input comes from an FP32 layer into a
        # node of two types, and then refuses that node.
        failure = None
        for entry, disabled, self.options in (
                ("session.x64quantprecision", (), ""),
                ("session.disable_quant_qdq", (), "with session.disable_quant_qdq set to 1"),
                ("session.x64quantprecision", NORMALISATION_FUSIONS,
                 f"without its optimizers {' and '.join(NORMALISATION_FUSIONS)}")):
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.add_session_config_entry(entry, "1")
            for library in operators:
                options.register_custom_ops_library(library)
            if threads:
                options.intra_op_num_threads = threads
            try:
                self._session = onnxruntime.InferenceSession(path, options, providers=providers,
                                                             disabled_optimizers=list(disabled))
                break
            except Exception as error:
                failure = failure or _translate_onnxruntime_error("ONNX Runtime refuses the exported file", error)
        else:
            assert failure is not None
            raise failure
        self._session.disable_fallback()
        if PROVIDERS[provider] not in self._session.get_providers():
            raise InputError("ONNX Runtime refuses the exported file", f"its provider {provider} did not start")

    def run(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> dict[str, np.ndarray]:
        """Executes the exported network once. Returns the named outputs.

        Raises:
            InputError: ONNX Runtime cannot execute the file.
            OutOfMemoryError: An allocation failed.
        """
        input_names = {info.name for info in self._session.get_inputs()}
        try:
            results = self._session.run(list(output_names),
                                        {name: array
                                         for name, array in feed.items()
                                         if name in input_names})
        except Exception as error:
            raise _translate_onnxruntime_error("ONNX Runtime could not execute the exported file", error) from None
        return dict(zip(output_names, results, strict=True))


def _translate_onnxruntime_error(title: str, error: Exception) -> InputError:
    text = str(error).strip()
    if FAILED_ALLOCATION.search(text):
        raise convert_memory_error(text.splitlines()[0]) from None
    return InputError(title, text.splitlines()[0] if text else type(error).__name__)
