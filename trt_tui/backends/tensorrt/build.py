"""Building an engine from an ONNX file."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from trt_tui.backends.tensorrt.failures import build_error, parse_error, start_error
from trt_tui.backends.tensorrt.log import Log, Message
from trt_tui.backends.tensorrt.package import Package, dotted, dotted_all
from trt_tui.core.lowering.weak import tell
from trt_tui.core.precision import Precision
from trt_tui.core.production import WORKSPACE, Production
from trt_tui.core.runner import TIMINGS_REFUSED, BuildSettings, BuildStep, Told
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.files.locking import locked
from trt_tui.files.reading import read_bytes
from trt_tui.files.sealing import reseal
from trt_tui.files.writing import write_atomic

_PATIENCE_S = 10.0
"""How long a timing cache that another program is writing is waited for."""

_MAGIC = 4
"""First bytes of a timing cache of another release or GPU, which tell it from any other file."""


def build(package: Package, model: Path, settings: BuildSettings, told: Told | None, step: BuildStep | None,
          message: Message | None) -> bytes:
    """See `trt_tui.core.runner.EngineBackend.build`."""
    log = package.log
    if told is None and not package.capabilities.strong:
        raise ValueError("this release has to be told precisions layer by layer")
    log.details.clear()
    with log.collecting(message) as said:
        try:
            builder, network = package.loaders.create_network(strongly_typed=told is None)
        except Exception as error:
            raise start_error(package.name, package.version, said, error) from None
        parser = _parsed(package, model, network)
        _check_profile(package.name, network, settings)
        if told is not None:
            tell(package.trt, network, told.precisions, told.output_types, told.ranges, told.inner, told.constants,
                 told.names)
        if settings.hands_out and not network.mark_unfused_tensors_as_debug_tensors():
            log.take("warning", "TensorRT does not let its unfused tensors be read")
        monitor = _monitor(package.trt, step) if step is not None and package.capabilities.reports_progress else None
        cache = Path(settings.production.timing_cache) if settings.production.timing_cache else None
        timings = _read_timings(log, cache) if cache is not None else None
        try:
            config = _config(package, settings, told, monitor, timings)(builder, network)
            data = package.loaders.engine_bytes_from_network((builder, network, parser), config=config)
        except Exception as error:
            if monitor is not None and monitor.stopped:
                raise CancelledError("the build was stopped") from None
            raise build_error(said, log.details, error, package.capabilities.runs) from None
        if cache is not None:
            refused = any(TIMINGS_REFUSED.search(text) for _, text in said)
            _write_timings(log, config, cache, refused)
    return bytes(data)


def _parsed(package: Package, model: Path, network: Any) -> Any:
    logger = package.log.for_tensorrt(package.trt)
    parser = package.trt.OnnxParser(network, logger)
    package.trt.init_libnvinfer_plugins(logger, "")
    if not parser.parse_from_file(str(model)) or parser.num_errors:
        found = [parser.get_error(index) for index in range(parser.num_errors)]
        raise parse_error(package.name, package.version, found, model)
    let_attention_be_taken_apart(package.trt, network)
    return parser


def let_attention_be_taken_apart(trt: Any, network: Any) -> None:
    """Lets the builder compute ONNX's Attention in several layers where it has no kernel for it: TensorRT-RTX 1.7 has
    some in 16 bits and none in FP32, and refuses the network otherwise."""
    wanted = trt.LayerType.__members__.get("ATTENTION_INPUT")  # absent before 10.14
    if wanted is None:
        return
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.type == wanted:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings hand out the base class
            layer.attention.decomposable = True


def _check_profile(backend: str, network: Any, settings: BuildSettings) -> None:
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if len(shape) < 2 and tensor.is_shape_tensor:
            raise InputError(f"the values of input {tensor.name} are shapes",
                             f"{backend} needs them in the profile, and --shapes only gives shapes of inputs",
                             "Make it a constant of the network, in its exporter or with onnx-graphsurgeon; the "
                             "simulation works without that.")
        if tensor.name.startswith("__") and tensor.name[2:] in settings.profile:
            raise InputError(f"input {tensor.name[2:]} is also an output of the network",
                             f"the parser of {backend} gives such an input another name, {tensor.name}",
                             "Drop that output: it is the input, unchanged.")
        if -1 in shape and tensor.name not in settings.profile:
            sizes = "x".join("?" if size == -1 else str(size) for size in shape)
            raise InputError(f"input {tensor.name} has dynamic dimensions and no profile", f"its shape is {sizes}",
                             f"Give --shapes {tensor.name}:MIN:OPT:MAX with a size for every dimension.")


# Given a path, Polygraphy loses the engine if it cannot lock or write the file.
def _read_timings(log: Log, path: Path) -> _Timings | None:
    """The timing cache in a file; if it cannot be read the build takes longer, but goes on."""
    try:
        return _Timings(path, read_bytes(path)) if os.path.exists(path) else None
    except InputError as error:
        log.take("warning", f"the timing cache {path} cannot be read: {error.cause}")
        return None


def _write_timings(log: Log, config: Any, path: Path, refused: bool) -> None:
    """Writes what a build measured, and what the file holds by now; the engine is made, whether or not it can.

    A lock keeps two programs from losing what the other measured meanwhile.
    """
    try:
        cache = config.get_timing_cache()
        if cache is None:
            return
        with locked(path, _PATIENCE_S):
            held, made = read_bytes(path) if os.path.exists(path) else b"", bytes(cache.serialize())
            if refused and held[:_MAGIC] != made[:_MAGIC]:
                log.take("warning", f"{path} is no timing cache: it is left as it is")
                return
            there = config.create_timing_cache(held) if held else None
            if there is not None:
                cache.combine(there, ignore_mismatch=True)
            write_atomic(path, bytes(cache.serialize()))
            reseal(path)
    except Exception as error:
        cause = error.cause if isinstance(error, TrtTuiError) else getattr(error, "strerror", None) or error
        log.take("warning", f"the timing cache {path} cannot be written: {cause}")


def _config(package: Package, settings: BuildSettings, told: Told | None, monitor: Any,
            timings: _Timings | None) -> Any:
    """Polygraphy's maker of a builder's config."""
    name, trt, loaders, capabilities = package.name, package.trt, package.loaders, package.capabilities
    production = settings.production
    profiles = [loaders.Profile() for _ in range(1 + len(settings.further))]
    for profile, more in zip(profiles, ({}, *settings.further), strict=True):
        for tensor, (least, usual, most) in {**settings.profile, **more}.items():
            profile.add(tensor, least, usual, most)
    common: dict[str, Any] = {
        "profiles": profiles, "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "load_timing_cache": timings,
        "builder_optimization_level": production.optimization_level, "progress_monitor": monitor,
    }
    if production.tactic_sources:
        common["tactic_sources"] = [_member(trt.TacticSource, source) for source in production.tactic_sources]
    production.refuse_for("rtx" if name == "tensorrt-rtx" else "", f"{name} {package.version}")
    asked = _members(package, production)
    if capabilities.compute_capabilities:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        wanted, offered = settings.compute_capability, capabilities.compute_capabilities
        if wanted is None and not capabilities.runs:
            raise InputError("there is no GPU to build for", f"{name} builds for a named compute capability",
                             f"Give --compute-capability, one of {dotted_all(offered)}.")
        if wanted is not None and wanted not in offered:
            raise InputError(f"{name} {package.version} does not build for compute capability {dotted(wanted)}",
                             f"it builds for {dotted_all(offered)}", "Choose one of them.")
        target = {"compute_capabilities": [wanted]} if wanted is not None else {"use_gpu": True}
        create = CreateConfigRTX(**target, **common)
    else:
        if settings.compute_capability is not None:
            raise InputError(f"{name} builds for the GPU it runs on", "a compute capability was named",
                             "Leave out --compute-capability, or use --backend tensorrt-rtx.")
        flags: frozenset[Precision] = told.flags if told is not None else frozenset()
        constraints = told.constraints or None if told is not None and flags else None
        create = loaders.CreateConfig(
            tf32=settings.tf32, fp16=Precision.FP16 in flags, int8=Precision.INT8 in flags,
            bf16=Precision.BF16 in flags, precision_constraints=constraints,
            **common)

    def set_all(builder: Any, network: Any, config: Any) -> None:
        change = config.set_flag if settings.tf32 else config.clear_flag
        change(trt.BuilderFlag.TF32)
        for member in asked:
            if isinstance(member, trt.BuilderFlag):
                config.set_flag(member)
            elif isinstance(member, trt.MemoryPoolType):
                config.set_memory_pool_limit(member, (production.workspace or 0) << 20)
            else:
                config.hardware_compatibility_level = member

    return loaders.PostprocessConfig(create, set_all)


def _members(package: Package, production: Production) -> list[Any]:
    """The members of the bindings' enums that stand for what production asks for.

    Raises:
        InputError: the release lacks one; names both.
    """
    found = []
    for one, setting, value in production.asked:
        names = {"": "", "workspace": WORKSPACE, "hardware_compatibility": setting.choices.get(str(value), "")}
        member = setting.flag or names.get(one.name, "")
        if not member:
            continue
        enum = "BuilderFlag" if setting.flag else "MemoryPoolType" if one.name == "workspace" else \
            "HardwareCompatibilityLevel"
        offered = getattr(package.trt, enum, None)
        if not hasattr(offered, member):
            raise InputError(f"{package.name} {package.version} has no {member}", f"{setting.option} asks for it",
                             f"Leave out {setting.option}, or build with another release.")
        found.append(getattr(offered, member))
    return found


class _Timings(io.BytesIO):
    """The bytes of a timing cache in place of its open file, of which Polygraphy asks the mode and the name."""

    mode = "rb"

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(data)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


def _member(enum: Any, name: str) -> Any:
    member = getattr(enum, name.upper(), None)
    if member is None:
        known = ", ".join(one for one in dir(enum) if one.isupper())
        raise InputError(f"unknown tactic source {name}", f"there are: {known}", "Correct the name.")
    return member


def _monitor(trt: Any, step: BuildStep) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Counts the steps of the outermost phase; TensorRT calls it from several threads."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self.phases: dict[str, tuple[str | None, int]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = (parent_phase, num_steps)
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._tell(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _tell(self, phase: str, done: int) -> bool:
            _, steps = self.phases.get(phase, (None, 0))
            if not step(phase, done, steps):
                self.stopped = True
            return not self.stopped

    return Monitor()
