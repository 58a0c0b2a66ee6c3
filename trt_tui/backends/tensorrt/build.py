"""The build of a TensorRT engine from an ONNX file, and the list of engine layers that TensorRT-RTX prints for a build
without a GPU, whose engine is discarded."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.backends.tensorrt.package import (
    MessageCallback,
    PrintedMessages,
    TensorRTLog,
    TensorRTPackage,
    capabilities_text,
    capability_text,
    import_tensorrt,
    translate_build_error,
    translate_parser_errors,
    translate_startup_error,
)
from trt_tui.core.builder_options import WORKSPACE_POOL, BuilderOptions
from trt_tui.core.engines.inspector import LISTING_HEADING
from trt_tui.core.lowering.implicit_quantization import apply_constraints
from trt_tui.core.precision import Precision
from trt_tui.core.runner import TIMING_CACHE_REFUSED, BuildSettings, BuildStep, LayerConstraints, Profile
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.locks import file_lock
from trt_tui.files.reading import read_bytes
from trt_tui.files.writing import update_checksum_file, write_file_atomically

_LOCK_TIMEOUT_S = 10.0
"""The maximum time in seconds to wait for a timing cache that another process is writing."""

_MAGIC_BYTES = 4
"""The number of bytes at the start of a file that identify a timing cache, whatever its release and GPU."""


def build_engine(package: TensorRTPackage, model_path: Path, settings: BuildSettings,
                 constraints: LayerConstraints | None, on_step: BuildStep | None,
                 on_message: MessageCallback | None) -> bytes:
    log = package.log
    if constraints is None and not package.capabilities.strongly_typed:
        raise ValueError("this release needs precisions layer by layer")
    log.details.clear()
    with log.collect_messages(on_message) as messages:
        try:
            builder, network = package.loaders.create_network(strongly_typed=constraints is None)
        except Exception as error:
            raise translate_startup_error(package.name, package.version, messages, error) from None
        parser = _parse_onnx_file(package, model_path, network)
        _check_optimization_profile(package.name, network, settings)
        if constraints is not None:
            apply_constraints(package.trt, network, constraints.precisions, constraints.output_types,
                              constraints.ranges, constraints.inner_ranges, constraints.constant_ranges,
                              constraints.layer_names)
        if settings.debug_tensors and not network.mark_unfused_tensors_as_debug_tensors():
            log.dispatch_message("warning", "TensorRT does not let its unfused tensors be read")
        monitor = make_progress_monitor(
            package.trt, on_step) if on_step is not None and package.capabilities.reports_progress else None
        cache = Path(settings.builder_options.timing_cache) if settings.builder_options.timing_cache else None
        timing_cache = _read_timing_cache(log, cache) if cache is not None else None
        try:
            config = _make_builder_config_loader(package, settings, constraints, monitor, timing_cache)(builder,
                                                                                                        network)
            data = package.loaders.engine_bytes_from_network((builder, network, parser), config=config)
        except Exception as error:
            if monitor is not None and monitor.stopped:
                raise CancelledError("the build was stopped") from None
            raise translate_build_error(messages, log.details, error, package.capabilities.can_execute) from None
        if cache is not None:
            refused = any(TIMING_CACHE_REFUSED.search(text) for _, text in messages)
            _write_timing_cache(log, config, cache, refused)
    return bytes(data)


def _parse_onnx_file(package: TensorRTPackage, model_path: Path, network: Any) -> Any:
    logger = package.log.get_tensorrt_logger(package.trt)
    parser = package.trt.OnnxParser(network, logger)
    package.trt.init_libnvinfer_plugins(logger, "")
    if not parser.parse_from_file(str(model_path)) or parser.num_errors:
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        raise translate_parser_errors(package.name, package.version, errors, model_path)
    allow_attention_decomposition(package.trt, network)
    return parser


def allow_attention_decomposition(trt: Any, network: Any) -> None:
    """Allows the builder to split ONNX's Attention into several layers if there is no kernel for the whole operator.

    TensorRT-RTX 1.7 has kernels in 16 bits and none in FP32, and would refuse the network.
    """
    attention_type = trt.LayerType.__members__.get("ATTENTION_INPUT")  # absent before 10.14
    if attention_type is None:
        return
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.type == attention_type:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
            layer.attention.decomposable = True


def _check_optimization_profile(backend_name: str, network: Any, settings: BuildSettings) -> None:
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if len(shape) < 2 and tensor.is_shape_tensor:
            raise InputError(f"the values of input {tensor.name} are shapes",
                             f"{backend_name} needs them in the profile, and --shapes only gives shapes of inputs",
                             "Make it a constant of the network, in its exporter or with onnx-graphsurgeon; the "
                             "simulation works without that.")
        if tensor.name.startswith("__") and tensor.name[2:] in settings.profile:
            raise InputError(f"input {tensor.name[2:]} is also an output of the network",
                             f"the parser of {backend_name} gives such an input another name, {tensor.name}",
                             "Drop that output: it is the input, unchanged.")
        if -1 in shape and tensor.name not in settings.profile:
            sizes = "x".join("?" if size == -1 else str(size) for size in shape)
            raise InputError(f"input {tensor.name} has dynamic dimensions and no profile", f"its shape is {sizes}",
                             f"Give --shapes {tensor.name}:MIN:OPT:MAX with a size for every dimension.")


# The timing cache is read and written here: Polygraphy, with a path, loses the engine if it cannot lock or write the
# file.
def _read_timing_cache(log: TensorRTLog, path: Path) -> _TimingCacheBytes | None:
    """Reads a timing cache file. Returns None with a warning if the file cannot be read; the build then takes longer.
    """
    try:
        return _TimingCacheBytes(path, read_bytes(path)) if os.path.exists(path) else None
    except InputError as error:
        log.dispatch_message("warning", f"the timing cache {path} cannot be read: {error.cause}")
        return None


def _write_timing_cache(log: TensorRTLog, config: Any, path: Path, was_refused: bool) -> None:
    """Merges the timings of a build into the timing cache file. A failure only logs a warning, since the engine is
    built.

    A lock prevents two processes from overwriting each other's timings.
    """
    try:
        cache = config.get_timing_cache()
        if cache is None:
            return
        with file_lock(path, _LOCK_TIMEOUT_S):
            stored, measured = read_bytes(path) if os.path.exists(path) else b"", bytes(cache.serialize())
            if was_refused and stored[:_MAGIC_BYTES] != measured[:_MAGIC_BYTES]:
                log.dispatch_message("warning", f"{path} is not a timing cache: it is left unchanged")
                return
            stored_cache = config.create_timing_cache(stored) if stored else None
            if stored_cache is not None:
                cache.combine(stored_cache, ignore_mismatch=True)
            write_file_atomically(path, bytes(cache.serialize()))
            update_checksum_file(path)
    except Exception as error:
        cause = error.cause if isinstance(error, TrtTuiError) else getattr(error, "strerror", None) or error
        log.dispatch_message("warning", f"the timing cache {path} cannot be written: {cause}")


def _make_builder_config_loader(package: TensorRTPackage, settings: BuildSettings,
                                layer_constraints: LayerConstraints | None, monitor: Any,
                                timing_cache: _TimingCacheBytes | None) -> Any:
    """Returns the Polygraphy loader that creates the builder config."""
    name, trt, loaders, capabilities = package.name, package.trt, package.loaders, package.capabilities
    production = settings.builder_options
    profiles = [loaders.Profile() for _ in range(1 + len(settings.more_profiles))]
    for profile, extra_shapes in zip(profiles, ({}, *settings.more_profiles), strict=True):
        for tensor, (min_shape, opt_shape, max_shape) in {**settings.profile, **extra_shapes}.items():
            profile.add(tensor, min_shape, opt_shape, max_shape)
    common: dict[str, Any] = {
        "profiles": profiles, "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "load_timing_cache": timing_cache,
        "builder_optimization_level": production.optimization_level, "progress_monitor": monitor,
    }
    production.check_builder_support(name, package.version)
    requested_members = _list_requested_enum_members(package, production)
    sources = [(source[0], 1 << int(_find_tactic_source(trt.TacticSource, source[1:])))
               for source in production.tactic_sources]
    if capabilities.target_compute_capabilities:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        requested, offered = settings.compute_capability, capabilities.target_compute_capabilities
        if requested is None and not capabilities.can_execute:
            raise InputError("there is no GPU to build for", f"{name} builds for a named compute capability",
                             f"Use --compute-capability with one of {capabilities_text(offered)}.")
        if requested is not None and requested not in offered:
            raise InputError(
                f"{name} {package.version} does not build for compute capability {capability_text(requested)}",
                f"it builds for {capabilities_text(offered)}", "Choose one of them.")
        target_arguments = {"compute_capabilities": [requested]} if requested is not None else {"use_gpu": True}
        create = CreateConfigRTX(**target_arguments, **common)
    else:
        if settings.compute_capability is not None:
            raise InputError(f"{name} builds for the GPU it runs on", "a compute capability was named",
                             "Leave out --compute-capability, or use --backend tensorrt-rtx.")
        flags: frozenset[Precision] = layer_constraints.precision_flags if layer_constraints is not None else frozenset(
        )
        constraints = layer_constraints.constraint_mode or None if layer_constraints is not None and flags else None
        create = loaders.CreateConfig(
            tf32=settings.tf32, fp16=Precision.FP16 in flags, int8=Precision.INT8 in flags,
            bf16=Precision.BF16 in flags, precision_constraints=constraints,
            **common)

    def set_requested_options(builder: Any, network: Any, config: Any) -> None:
        change = config.set_flag if settings.tf32 else config.clear_flag
        change(trt.BuilderFlag.TF32)
        for sign, bit in sources:
            enabled = config.get_tactic_sources()
            config.set_tactic_sources(enabled | bit if sign == "+" else enabled & ~bit)
        for member in requested_members:
            if isinstance(member, trt.BuilderFlag):
                config.set_flag(member)
            elif isinstance(member, trt.MemoryPoolType):
                config.set_memory_pool_limit(member, (production.workspace or 0) << 20)
            else:
                config.hardware_compatibility_level = member

    return loaders.PostprocessConfig(create, set_requested_options)


def _list_requested_enum_members(package: TensorRTPackage, builder_options: BuilderOptions) -> list[Any]:
    """Returns the members of TensorRT's enums that correspond to the requested builder options.

    Raises:
        InputError: The release lacks a member. The message names the member and the option.
    """
    members = []
    for field, setting, value in builder_options.requested_options:
        names = {"": "", "workspace": WORKSPACE_POOL, "hardware_compatibility": setting.choices.get(str(value), "")}
        member = setting.flag or names.get(field.name, "")
        if not member:
            continue
        enum = "BuilderFlag" if setting.flag else "MemoryPoolType" if field.name == "workspace" else \
            "HardwareCompatibilityLevel"
        offered = getattr(package.trt, enum, None)
        if not hasattr(offered, member):
            raise InputError(f"{package.name} {package.version} has no {member}", f"{setting.option} needs it",
                             f"Leave out {setting.option}, or build with another release.")
        members.append(getattr(offered, member))
    return members


class _TimingCacheBytes(io.BytesIO):
    """The bytes of a timing cache in the form of an open file, with the mode and the name that Polygraphy reads."""

    mode = "rb"

    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(data)
        self._path = path

    def __str__(self) -> str:
        return str(self._path)


def _find_tactic_source(enum: Any, name: str) -> Any:
    member = getattr(enum, name.upper(), None)
    if member is None:
        names = ", ".join(member_name for member_name in dir(enum) if member_name.isupper())
        raise InputError(f"unknown tactic source {name}", f"available: {names}", "Correct the name.")
    return member


def make_progress_monitor(trt: Any, on_step: BuildStep) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """The progress monitor of a build, which reports the steps of the outermost phase. TensorRT calls it from
        several threads."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.stopped = False
            self.phases: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = num_steps
            self._report_step(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._report_step(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _report_step(self, phase: str, done_steps: int) -> bool:
            self.stopped |= not on_step(phase, done_steps, self.phases.get(phase, 0))
            return not self.stopped

    return Monitor()


_BUILD_THREADS = min(os.cpu_count() or 1, 4)
"""The number of threads of a build.

The engine does not depend on this number. Other measurements on this machine wait for the build.
"""


def import_preview_builder() -> Any:
    """Imports the TensorRT-RTX package, which lists the engine layers of a network without a GPU.

    Raises:
        BackendUnavailableError: The package is not installed, does not load, or has an unsupported release.
    """
    trt = import_tensorrt("tensorrt-rtx")
    if not hasattr(trt.OnnxParser, "load_initializer"):
        raise BackendUnavailableError(f"TensorRT-RTX {trt.__version__} is too old for a preview",
                                      "it cannot read weights from memory", "pip install -U 'trt-tui[rtx]'")
    return trt


def list_engine_layers(trt: Any, model: bytes, weights: Mapping[str, np.ndarray], base_path: Path, profile: Profile,
                       tf32: bool, compute_capability: tuple[int, int],
                       should_continue: Callable[[], bool]) -> tuple[str, PrintedMessages]:
    """Builds an engine of a strongly typed network without a GPU. Returns the list of its layers, and the printed
    messages.

    Args:
        trt: The package of `import_preview_builder`.
        model: The bytes of an ONNX file without its weights.
        weights: The weights, by name. The parser and the builder read them in place.
        base_path: A path in the folder of the external files that the model refers to.
        should_continue: A function that is called between two steps. The build ends if it returns False.

    Raises:
        NetworkParseError: The parser refuses the network. The message names the node.
        BuildError: The build failed.
        CancelledError: ``should_continue`` returned False.
        InputError: The release does not list engine layers.
    """
    log = TensorRTLog()
    logger = log.get_tensorrt_logger(trt)
    with log.collect_messages(None) as messages:
        builder = trt.Builder(logger)
        builder.max_threads = _BUILD_THREADS
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        trt.init_libnvinfer_plugins(logger, "")
        is_loaded = parser.load_model_proto(model, str(base_path)) and all(
            parser.load_initializer(name, array.ctypes.data, array.nbytes) for name, array in weights.items())
        if not is_loaded or not parser.parse_model_proto() or parser.num_errors:
            errors = [parser.get_error(index) for index in range(parser.num_errors)]
            raise translate_parser_errors("tensorrt-rtx", trt.__version__, errors)
        allow_attention_decomposition(trt, network)
        config = builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(
            getattr(trt.ComputeCapability, f"SM{compute_capability[0]}{compute_capability[1]}"), 0)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        (config.set_flag if tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
        if profile:
            optimization_profile = builder.create_optimization_profile()
            for name, (min_shape, opt_shape, max_shape) in profile.items():
                optimization_profile.set_shape(name, min_shape, opt_shape, max_shape)
            config.add_optimization_profile(optimization_profile)
        monitor = make_progress_monitor(trt, lambda *_: should_continue())
        config.progress_monitor = monitor
        built = builder.build_serialized_network(network, config)
        if monitor.stopped:
            raise CancelledError("stopped")
        if built is None:
            raise translate_build_error(messages, tuple(log.details), RuntimeError("the builder gives no reason"))
    if not log.listings:
        raise InputError("TensorRT-RTX does not list the layers of the engine",
                         f"release {trt.__version__} prints no message that begins with {LISTING_HEADING}",
                         "Another release may print it; a build on a GPU reports its layers through the inspector.")
    return log.listings[-1], [message for message in messages if message[0] != "info"]
