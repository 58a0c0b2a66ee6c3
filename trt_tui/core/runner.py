"""What analysis and calibration are given to run networks with: protocols, no backend.

A backend (``trt_tui.backends``) implements `Backend`; what it loads is a `Runner`. Nothing in ``trt_tui.core``
imports a backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.precision import Precision

Dimension = int | str | None
"""One dimension of a shape: a size, a symbolic name, or unknown."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type and shape of one network input or output; a negative size is one that is not known."""

    name: str
    dtype: np.dtype
    shape: tuple[Dimension, ...] | None

    def __post_init__(self) -> None:
        if any(isinstance(size, int) and size < 0 for size in self.shape or ()):
            known_shape = tuple(None if isinstance(size, int) and size < 0 else size for size in self.shape or ())
            object.__setattr__(self, "shape", known_shape)


@dataclass(frozen=True)
class BackendCapabilities:
    """What a backend can do; decisions ask these, never a version number."""

    can_execute: bool
    """It can execute what it loads on this machine."""
    can_build: bool
    """It makes an engine file of its own."""
    computes_in_fp16: bool
    """FP16-typed operators are computed in FP16 (ONNX Runtime's CPU provider computes them in FP32)."""
    has_device: bool = False
    """Its runs wait for a device, on which what is fed can stay: gates as data are faster there than control flow."""
    supports_bf16: bool = True
    """It has BF16 operators."""
    quantized_types: frozenset[Precision] = frozenset((Precision.INT8,))
    """What Q/DQ can make of tensors in it."""
    gpu_compute_capability: tuple[int, int] | None = None
    """The compute capability of the GPU here; None where there is none, or it is not known."""
    strongly_typed: bool = True
    """It takes precisions from the types of the graph; else Q/DQ alone, and float precisions layer by layer."""
    weakly_typed: bool = False
    """It takes precisions layer by layer and ranges tensor by tensor (implicit quantization)."""
    supports_cubic_grids: bool = False
    """Its parser reads the mode cubic of a GridSample of opset 20 or later as such; others read it as nearest."""
    reports_progress: bool = False
    """It tells the steps of a build, and heeds a stop between two of them."""
    debug_tensors: bool = False
    """Engines can be built so that what their kernels hand on to each other can be read, fused as ever."""
    target_compute_capabilities: tuple[tuple[int, int], ...] = ()
    """GPUs it can build for without having one, as (major, minor); empty where it builds for the GPU it runs on."""


@dataclass(frozen=True)
class DebugTensor:
    """A tensor that a kernel of an engine hands on to others.

    Attributes:
        values: float32, as it lies in memory under the shape that the engine gives it; of codes their numbers.
        precision: Its type.
    """

    values: np.ndarray
    precision: Precision


@dataclass(frozen=True)
class ExecutionMode:
    """How the runs of a network are made on a device.

    Attributes:
        name: For people, like "CUDA graph".
        reason: Why they are made in no faster way; "" where none is known, or it was not tried.
    """

    name: str
    reason: str = ""


@runtime_checkable
class Runner(Protocol):
    """A loaded network, used as a context manager."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What it is fed."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it yields."""

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs once; returns the outputs named in ``fetch`` (all by default) by name.

        Raises:
            OutOfMemoryError: an allocation failed.
            TrtTuiError: the backend refused to run these feeds.
        """

    def close(self) -> None:
        """Frees what it holds; it cannot run after that."""

    def __enter__(self) -> Runner: ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """Loads ONNX networks for running."""

    name: str
    version: str
    provider: str
    """What it runs them on, like "cpu" or "cuda"."""
    capabilities: BackendCapabilities

    def get_host_backend(self) -> Backend | None:
        """The same where memory is the host's, for what a device has no room for; None where this runs there."""

    def load(self, model: ir.Model, *, low_memory: bool = False, optimize: bool = True,
             on_mode_change: Callable[[ExecutionMode], None] | None = None, few_executions: bool = False) -> Runner:
        """Loads a network without writing it anywhere the user sees.

        Args:
            model: The network; its weights may lie in external data files.
            low_memory: Trade a little speed for the lowest peak memory (used for graphs that hold several branches).
            optimize: False keeps every operator as written.
            on_mode_change: Given, what is fed stays on the device, where there is one, and a run is as few launches as
                the graph allows; it is called with how runs are made whenever that changes.
            few_executions: So few runs are to come that preparing them for speed is not worth its time.

        Raises:
            OutOfMemoryError: an allocation failed.
            TrtTuiError: the backend refuses the network; names the node where it can.
        """


FixedShape = tuple[int, ...]

Profile = Mapping[str, tuple[FixedShape, FixedShape, FixedShape]]
"""Least, usual and largest shape by input name."""

MIN_OPTIMIZATION_LEVEL, LOW_OPTIMIZATION_LEVEL = 0, 1
"""The lowest optimization level, and that of a quick build."""


@dataclass(frozen=True)
class BuildSettings:
    """How to build an engine, precisions apart.

    Attributes:
        profile: Least, usual and largest shape by input name; needed for inputs with dynamic dimensions.
        tf32: Whether FP32 layers may use TF32.
        compute_capability: GPU to build for, as (major, minor); the one here when None.
        debug_tensors: What kernels hand on to each other can be read; see `BackendCapabilities.debug_tensors`.
        builder_options: How the builder is to work, and what the engine is to be like.
        more_profiles: More optimization profiles; inputs that one does not name have their shapes of ``profile``.
    """

    profile: Profile = field(default_factory=dict)
    tf32: bool = False
    compute_capability: tuple[int, int] | None = None
    debug_tensors: bool = False
    builder_options: BuilderOptions = field(default_factory=BuilderOptions)
    more_profiles: tuple[Profile, ...] = ()

    def without_timing_cache(self) -> BuildSettings:
        """The same with no timing cache named."""
        return replace(self, builder_options=replace(self.builder_options, timing_cache=""))

    def with_low_build_effort(self) -> BuildSettings:
        """The same with little effort."""
        return self._with_optimization_level(LOW_OPTIMIZATION_LEVEL)

    def with_lowest_build_effort(self) -> BuildSettings:
        """The same with the lowest effort, at which nothing is timed."""
        return self._with_optimization_level(MIN_OPTIMIZATION_LEVEL)

    def _with_optimization_level(self, optimization_level: int) -> BuildSettings:
        return replace(self, builder_options=replace(self.builder_options, optimization_level=optimization_level))


@dataclass(frozen=True)
class LayerConstraints:
    """What a builder is told layer by layer, beside the graph, where the graph's types do not decide.

    Attributes:
        precisions: Precision to compute in, by layer name.
        output_types: Precision to store outputs in, by layer name.
        ranges: Dynamic range (amax, in the tensor's own units) by tensor name; none for explicit quantization.
        precision_flags: Precisions that any layer may use.
        inner_ranges: For each layer of an INT8 group the range (amax) of its result, for tensors that TensorRT's parser
            adds where it makes several layers of a node.
        constant_ranges: Ranges of the constants that INT8 groups read, by initializer name.
        layer_names: Every layer of the network, by which the layers that a parser made are known; as they are where
        empty.
        constraint_mode: "obey" fails a build that cannot honour what is told, "prefer" lets it go on, "" binds it to
            nothing.
    """

    precisions: Mapping[str, Precision]
    output_types: Mapping[str, Precision]
    ranges: Mapping[str, float]
    precision_flags: frozenset[Precision]
    inner_ranges: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    constant_ranges: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    layer_names: tuple[str, ...] = field(default=(), kw_only=True)
    constraint_mode: str = field(default="obey", kw_only=True)

    def without_layer_precisions(self, layer_names: Iterable[str]) -> LayerConstraints:
        """The same with some layers told no precision."""
        removed_layers = frozenset(layer_names)
        return replace(
            self,
            precisions={name: precision
                        for name, precision in self.precisions.items()
                        if name not in removed_layers}, output_types={
                            name: precision
                            for name, precision in self.output_types.items()
                            if name not in removed_layers
                        })


TIMING_CACHE_REFUSED = re.compile(r"timing cache will not be used|(fail\w*|unable) to deserialize timing cache", re.I)
"""What a builder says where it does not take a timing cache."""

BuildStep = Callable[[str, int, int], bool]
"""Called with phase, steps done and steps in all (0 where nobody knows); returns False to stop the build."""


@runtime_checkable
class EngineRunner(Runner, Protocol):
    """A loaded engine."""

    device_memory: int | None
    """Bytes of device memory that a run needs beside weights and tensors."""
    profiles: tuple[Profile, ...]
    """The shapes of the inputs in each optimization profile, where there are several; a run takes the first that has
    the shapes of its feeds."""

    def select_profile(self, index: int | None) -> None:
        """Has runs take one profile, whatever the shapes of their feeds; None for the first that has them."""

    def latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """Milliseconds of one run, inputs and outputs staying on the device, no profiler attached."""

    def graph_latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """The same of a run that is launched as one CUDA graph, as trtexec 11 measures.

        Raises:
            TrtTuiError: it cannot be captured as one.
        """

    def layer_times_ms(self, feed: Mapping[str, np.ndarray], run_count: int) -> dict[str, float]:
        """Mean milliseconds by engine layer over some runs with the profiler attached."""

    def inspect(self) -> str:
        """The inspector's JSON."""

    def read_debug_tensors(self, feed: Mapping[str, np.ndarray], names: Container[str]) -> dict[str, DebugTensor]:
        """Runs once; returns float outputs and what kernels hand on to each other, by the inspector's names, as far as
        they are among ``names`` and the engine was built for it (`BuildSettings.debug_tensors`).

        Raises:
            TrtTuiError: it could not run, or what it hands on could not be read.
        """

    def __enter__(self) -> EngineRunner: ...


@runtime_checkable
class EngineBackend(Protocol):
    """Builds engines from ONNX files and runs them."""

    name: str
    version: str
    device: str
    """The GPU's name, "" where there is none."""
    capabilities: BackendCapabilities

    @property
    def cache_identity(self) -> tuple[object, ...]:
        """What an engine is bound to: package, version, GPU and driver."""

    def build(self, model_path: Path, settings: BuildSettings, constraints: LayerConstraints | None = None, *,
              on_step: BuildStep | None = None, on_message: Callable[[str, str], None] | None = None) -> bytes:
        """Builds an engine from an ONNX file; blocks, and may be called from a thread.

        Args:
            constraints: What the builder is told beside the graph; None for a strongly typed build.
            on_message: Called with level and text of what the builder prints.

        Raises:
            ParseFailed: the file is refused; names the node.
            InputError: the settings cannot be used.
            CancelledError: ``on_step`` returned False.
            BuildFailed: the build failed.
        """

    def load_engine(self, data: bytes) -> EngineRunner:
        """Loads an engine.

        Raises:
            InputError: it was made by another version or for another GPU.
            BackendUnavailableError: engines cannot run here.
        """
