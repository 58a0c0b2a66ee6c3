"""An exported ONNX file in ONNX Runtime with its default session options, as a user's own program loads it."""

from collections.abc import Mapping, Sequence

import numpy as np

from trt_tui.errors import FAILED_ALLOCATION, InputError, convert_memory_error

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""The execution providers by the names that backends use."""


class ExportedFileRunner:
    """A loaded file. Fusions, quantized kernels and every other optimization are as ONNX Runtime chooses them.

    Args:
        path: The ONNX file.
        provider: A name of `PROVIDERS`.
        tf32: Whether the CUDA provider may compute FP32 in TF32; the config says so.
        threads: Threads of one operator; ONNX Runtime's default if None.
        operators: Libraries of custom operators.

    Raises:
        InputError: ONNX Runtime refuses the file.
        OutOfMemoryError: An allocation failed.
        BackendUnavailableError: The provider does not work here.
    """

    def __init__(self, path: str, provider: str, *, tf32: bool = False, threads: int | None = None,
                 operators: Sequence[str] = ()) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        for library in operators:
            options.register_custom_ops_library(library)
        if threads:
            options.intra_op_num_threads = threads
        providers: list[str | tuple[str, dict[str, str]]] = [PROVIDERS["cpu"]]
        if provider == "cuda":
            from trt_tui.backends.onnxruntime import OnnxRuntimeBackend

            OnnxRuntimeBackend("cuda")  # loads the libraries of the provider, and refuses if it does not work
            providers.insert(0, (PROVIDERS["cuda"], {"use_tf32": str(int(tf32))}))
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:
            raise _translate_onnxruntime_error("ONNX Runtime refuses the exported file", error) from None
        self._session.disable_fallback()
        if PROVIDERS[provider] not in self._session.get_providers():
            raise InputError("ONNX Runtime refuses the exported file", f"its provider {provider} did not start")

    def run(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> dict[str, np.ndarray]:
        """Executes the file once; returns some of its outputs by name.

        Raises:
            InputError: ONNX Runtime cannot execute it.
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
