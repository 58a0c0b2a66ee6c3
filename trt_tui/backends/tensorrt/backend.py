"""The backend of TensorRT 8.6, 10, 11 and TensorRT-RTX, on Polygraphy's loaders and runner."""

from collections.abc import Sequence
from pathlib import Path

from trt_tui.backends.cuda import Device, first_device
from trt_tui.backends.tensorrt.build import build
from trt_tui.backends.tensorrt.failures import COMPARE, FREE, MEMORY, load_error, start_error
from trt_tui.backends.tensorrt.log import Message
from trt_tui.backends.tensorrt.package import (
    CUBIC_GRIDS,
    Package,
    buildable,
    dotted,
    dotted_all,
    load_polygraphy,
    module_for,
    not_starting,
    release_of,
)
from trt_tui.backends.tensorrt.plugins import load_plugins
from trt_tui.backends.tensorrt.run import TensorRTRunner
from trt_tui.core.codes import CODES
from trt_tui.core.lowering.releases import WEAK
from trt_tui.core.runner import BuildSettings, BuildStep, Capabilities, Told
from trt_tui.errors import BackendUnavailableError
from trt_tui.files.reading import digest


class TensorRTBackend:
    """Builds and runs engines.

    Args:
        name: "tensorrt" or "tensorrt-rtx".
        plugins: Libraries of plugins to load.

    Raises:
        InputError: one of the libraries does not load.
        BackendUnavailableError: the package or Polygraphy is missing or does not load, or TensorRT does not start, or
            there is no GPU and the package needs one.
    """

    def __init__(self, name: str = "tensorrt", plugins: Sequence[str] = ()) -> None:
        trt = module_for(name)
        version = str(trt.__version__)
        loaders, log = load_polygraphy(name, trt)
        for_others = hasattr(trt, "ComputeCapability")
        self._device: Device | None = None
        try:
            self._device = first_device()
        except BackendUnavailableError:
            if not for_others:
                raise
        if why := not_starting(trt):
            raise BackendUnavailableError(f"{name} {version} does not start", why,
                                          FREE if MEMORY.search(why) else COMPARE)
        load_plugins(trt, f"{name} {version}", plugins)
        self._plugins = tuple(map(digest, plugins))
        targets = buildable(trt)
        runs = self._device is not None and (not targets or self._device.compute_capability in targets)
        strong = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        codes = {one for one in CODES if strong and hasattr(trt.DataType, one.name)}  # 8.6 names FP8 and lacks it
        self.capabilities = Capabilities(
            runs=runs, builds=True, real_fp16=True, bf16=hasattr(trt.DataType, "BF16"),
            codes=WEAK | codes, gpu=self._device.compute_capability if self._device is not None else None,
            strong=strong, weak=hasattr(trt.BuilderFlag, "INT8"),
            cubic_grids=name == "tensorrt-rtx" and release_of(version) >= CUBIC_GRIDS,
            reports_progress=hasattr(trt, "IProgressMonitor"),
            hands_out=hasattr(trt.INetworkDefinition, "mark_unfused_tensors_as_debug_tensors"),
            compute_capabilities=targets)
        self._package = Package(name, trt, loaders, log, self.capabilities)
        self.name, self.version = name, version
        self.device = self._device.name if self._device is not None else ""

    @property
    def stamp(self) -> tuple[object, ...]:
        """What an engine is bound to: package, version, plugins, GPU and driver."""
        device = self._device
        return (self.name, self.version, *self._plugins,
                *((device.name, device.compute_capability, device.driver) if device else ()))

    def build(self, model: Path, settings: BuildSettings, told: Told | None = None, *, step: BuildStep | None = None,
              message: Message | None = None) -> bytes:
        """See `trt_tui.core.runner.EngineBackend.build`."""
        return build(self._package, model, settings, told, step, message)

    def load_engine(self, data: bytes) -> TensorRTRunner:
        """See `trt_tui.core.runner.EngineBackend.load_engine`."""
        if not self.capabilities.runs:
            why = "no GPU is visible" if self._device is None else (
                f"{self.device} has compute capability {dotted(self._device.compute_capability)}, and it runs on "
                f"{dotted_all(self.capabilities.compute_capabilities)}")
            raise BackendUnavailableError(f"{self.name} engines cannot run on this machine", why,
                                          "Run it on a GPU that it was built for; trt-tui inspect also takes the JSON "
                                          "of trtexec --exportLayerInfo.")
        package = self._package
        with package.log.collecting(None) as said:
            try:
                runtime = package.trt.Runtime(package.log.for_tensorrt(package.trt))
            except Exception as error:
                raise start_error(self.name, self.version, said, error) from None
            engine = None
            try:
                engine = package.loaders.engine_from_bytes(data, runtime=runtime)
            except Exception as error:
                raise load_error(f"{self.name} {self.version}", self.device, said, error) from None
            if engine is None:
                raise load_error(f"{self.name} {self.version}", self.device, said, None)
            return TensorRTRunner(package.trt, engine, package.log)
