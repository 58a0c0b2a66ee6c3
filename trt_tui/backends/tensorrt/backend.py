"""The backend of TensorRT 8.6, 10, 11 and TensorRT-RTX, based on the loaders and the runner of Polygraphy."""

from collections.abc import Sequence
from pathlib import Path

from trt_tui.backends.cuda import CudaDevice, find_first_device
from trt_tui.backends.tensorrt.build import build_engine
from trt_tui.backends.tensorrt.engine_runner import TensorRTRunner
from trt_tui.backends.tensorrt.package import (
    CUBIC_GRID_RELEASE,
    MessageCallback,
    TensorRTPackage,
    capabilities_text,
    capability_text,
    import_tensorrt,
    list_compute_capabilities,
    load_plugins,
    load_polygraphy,
    make_startup_error,
    parse_release_numbers,
    startup_failure_reason,
    translate_engine_load_error,
    translate_startup_error,
)
from trt_tui.core.lowering.lowering_checks import WEAK_PRECISIONS
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import BackendCapabilities, BuildSettings, BuildStep, LayerConstraints
from trt_tui.errors import BackendUnavailableError
from trt_tui.files.reading import file_sha256


class TensorRTBackend:
    """The backend that builds and executes TensorRT engines.

    Args:
        name: "tensorrt" or "tensorrt-rtx".
        plugins: The paths of plugin libraries to load.

    Raises:
        InputError: A library does not load.
        BackendUnavailableError: The package or Polygraphy is missing or does not load, or TensorRT does not start. The
            error is also raised if there is no GPU and the package needs one.
    """

    def __init__(self, name: str = "tensorrt", plugins: Sequence[str] = ()) -> None:
        trt = import_tensorrt(name)
        version = str(trt.__version__)
        loaders, log = load_polygraphy(name, trt)
        builds_for_other_gpus = hasattr(trt, "ComputeCapability")
        self._device: CudaDevice | None = None
        try:
            self._device = find_first_device()
        except BackendUnavailableError:
            if not builds_for_other_gpus:
                raise
        if reason := startup_failure_reason(trt):
            raise make_startup_error(f"{name} {version}", reason)
        load_plugins(trt, f"{name} {version}", plugins)
        self._plugins = tuple(map(file_sha256, plugins))
        compute_capabilities = list_compute_capabilities(trt)
        runs = self._device is not None and (not compute_capabilities
                                             or self._device.compute_capability in compute_capabilities)
        strongly_typed = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        quantized_types = {
            precision
            for precision, quantized_type in QUANTIZED_TYPES.items()
            if strongly_typed and hasattr(trt.DataType, quantized_type.tensorrt_type)
        }  # release 8.6 lists FP8 but does not support it
        self.capabilities = BackendCapabilities(
            can_execute=runs, computes_in_fp16=True, supports_bf16=hasattr(trt.DataType, "BF16"),
            quantized_types=WEAK_PRECISIONS | quantized_types,
            gpu_compute_capability=self._device.compute_capability if self._device is not None else None,
            strongly_typed=strongly_typed, weakly_typed=hasattr(trt.BuilderFlag,
                                                                "INT8"), supports_cubic_grids=name == "tensorrt-rtx"
            and parse_release_numbers(version) >= CUBIC_GRID_RELEASE, reports_progress=hasattr(trt, "IProgressMonitor"),
            debug_tensors=hasattr(trt.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors"),
            target_compute_capabilities=compute_capabilities)
        self._package = TensorRTPackage(name, trt, loaders, log, self.capabilities)
        self.name, self.version = name, version
        self.device = self._device.name if self._device is not None else ""

    @property
    def cache_identity(self) -> tuple[object, ...]:
        """The parts of a cache key that an engine depends on: package, version, plugins, GPU and driver."""
        device = self._device
        return (self.name, self.version, *self._plugins,
                *((device.name, device.compute_capability, device.driver) if device else ()))

    def build(self, model_path: Path, settings: BuildSettings, constraints: LayerConstraints | None = None, *,
              on_step: BuildStep | None = None, on_message: MessageCallback | None = None) -> bytes:
        return build_engine(self._package, model_path, settings, constraints, on_step, on_message)

    def load_engine(self, data: bytes) -> TensorRTRunner:
        if not self.capabilities.can_execute:
            reason = ("no GPU is visible" if self._device is None else (
                f"{self.device} has compute capability {capability_text(self._device.compute_capability)}, and the "
                f"backend runs on {capabilities_text(self.capabilities.target_compute_capabilities)}"))
            raise BackendUnavailableError(f"{self.name} engines cannot run on this machine", reason,
                                          "Run it on a GPU that it was built for; trt-tui inspect also takes the JSON "
                                          "of trtexec --exportLayerInfo.")
        package = self._package
        with package.log.collect_messages(None) as messages:
            try:
                runtime = package.trt.Runtime(package.log.get_tensorrt_logger(package.trt))
            except Exception as error:
                raise translate_startup_error(self.name, self.version, messages, error) from None
            engine = None
            try:
                engine = package.loaders.engine_from_bytes(data, runtime=runtime)
            except Exception as error:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, error) from None
            if engine is None:
                raise translate_engine_load_error(f"{self.name} {self.version}", self.device, messages, None)
            return TensorRTRunner(package.trt, engine, package.log)
