"""The protocols of backends, and of tasks, which are the units of parallel work, and of the executors that run tasks.

Analysis, calibration and builds use backends to execute networks and to build engines. A backend in
``trt_tui.backends`` implements `Backend`. A network that it has loaded is a `Runner`. An `EngineBackend` builds
engines. No module in ``trt_tui.core`` imports a backend.

A measurement creates a `Task` and a list of items. An `Executor` applies the task to each item, in this process or in
several processes. The results do not depend on the executor. They arrive in the order in which the items are finished.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import onnx_ir as ir

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.precision import Precision

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
Step = TypeVar("Step")
Translated = TypeVar("Translated")
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def map_generator_items(
    steps: Generator[Step, None, T], function: Callable[[Step], Translated]
) -> Generator[Translated, None, T]:
    """Yields the result of a function for each item of a generator. Returns the return value of the generator.

    Closing it closes ``steps``.
    """
    with contextlib.closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            yield function(step)


class Waitable(Protocol):
    """A condition that another thread fulfils. A task yields it to pause until ``ready`` returns True."""

    @property
    def ready(self) -> Callable[[], bool]:
        """A function that returns True as soon as the task can continue."""


class Task(Protocol[S_contra, Item_contra, T_co]):
    """A unit of parallel work, which an executor applies to each item.

    Each process receives one pickled copy. Data that a task caches between items are not pickled.

    Attributes:
        item_text: The description of an item for users, in which ``{}`` stands for the item.
    """

    item_text: str

    def run_item(self, context: S_contra, item: Item_contra) -> Generator[Waitable | None, None, T_co]:
        """Executes the task for one item.

        Yields None between two executions, or the `Waitable` that the task waits for. Returns the result of the item,
        which must be picklable.

        Args:
            context: The opened network, data and backends, equal in every process.
        """


class LoadingTask:
    """A base class of tasks that load an object for the first item, such as an inference session, and keep it for later
    items.
    """

    _loaded: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def close(self) -> None:
        """Frees the loaded object."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None


class Executor(Protocol[S_co]):
    """The protocol of executors, which apply tasks to items in this process or on a cluster."""

    def map(self, task: Task[S_co, Item, T], items: Iterable[Item]) -> Iterator[tuple[Item, T] | None]:
        """Yields each item with its result as soon as the result is available, and None while it waits.

        Closing the iterator stops the work.

        Raises:
            TrtTuiError: An item failed.
        """

    def is_ready(self) -> bool:
        """Returns True if `map` can make progress now. If not, `map` yields only None."""

    @property
    def location_text(self) -> str:
        """A text for the descriptions of jobs that names other executing processes, such as ", on 4 workers"; "" if
        there are none.
        """


class LocalExecutor(Generic[S]):
    """The executor that runs all tasks in this process.

    The items are executed one after the other. The next item is taken from ``items`` only when the previous one is
    finished.
    """

    location_text = ""

    def __init__(self, context: S) -> None:
        self._context = context
        self._waitable: Waitable | None = None

    def map(self, task: Task[S, Item, T], items: Iterable[Item]) -> Generator[tuple[Item, T] | None, None, None]:
        for item in items:
            result = yield from map_generator_items(task.run_item(self._context, item), self._set_waitable)
            self._set_waitable(None)
            yield item, result

    def is_ready(self) -> bool:
        return self._waitable is None or self._waitable.ready()

    def _set_waitable(self, waitable: Waitable | None) -> None:
        self._waitable = waitable


class AnalysisProvider(Protocol[S_co]):
    """The context in which a `Task` executes the simulation."""

    @property
    def analysis(self) -> S_co:
        """The simulation on the judged samples."""


class AnalysisContext(Generic[S]):
    """A context for tasks that contains only a simulation."""

    def __init__(self, analysis: S) -> None:
        self.analysis = analysis


Dimension = int | str | None
"""One dimension of a shape: a size, a symbolic name, or None if unknown."""


@dataclass(frozen=True)
class TensorInfo:
    """The name, element type and shape of a network input or output. A negative size is stored as None (unknown)."""

    name: str
    dtype: np.dtype
    shape: tuple[Dimension, ...] | None

    def __post_init__(self) -> None:
        if any(isinstance(size, int) and size < 0 for size in self.shape or ()):
            known_shape = tuple(None if isinstance(size, int) and size < 0 else size for size in self.shape or ())
            object.__setattr__(self, "shape", known_shape)

    @property
    def has_open_size(self) -> bool:
        """True if the shape or one of its sizes is unknown."""
        return self.shape is None or not all(isinstance(size, int) for size in self.shape)


@dataclass(frozen=True)
class BackendCapabilities:
    """The capabilities of a backend. Code decides by these attributes, never by a version number."""

    can_execute: bool
    """True if the backend can execute loaded networks on this machine."""
    computes_in_fp16: bool
    """True if FP16-typed operators are computed in FP16 (ONNX Runtime's CPU provider computes them in FP32)."""
    has_device: bool = False
    """True if the backend executes on a device, on which inputs can stay. Gates as data are faster there than control
    flow."""
    supports_bf16: bool = True
    """True if the backend has BF16 operators."""
    quantized_types: frozenset[Precision] = frozenset((Precision.INT8,))
    """The quantized types that Q/DQ nodes can have in the backend."""
    gpu_compute_capability: tuple[int, int] | None = None
    """The compute capability of the GPU of this machine; None if the machine has no GPU or the value is unknown."""
    strongly_typed: bool = True
    """True if the backend takes precisions from the types of the graph. If False, the graph contains only Q/DQ, and
    float precisions are set layer by layer."""
    weakly_typed: bool = False
    """True if the backend takes precisions layer by layer and ranges tensor by tensor (implicit quantization)."""
    supports_cubic_grids: bool = False
    """True if the backend's parser supports the mode cubic of a GridSample of opset 20 or later. Other parsers read
    cubic as nearest."""
    reports_progress: bool = False
    """True if the backend reports the steps of a build, and a build can be stopped between two steps."""
    debug_tensors: bool = False
    """True if engines can be built so that the tensors between their kernels can be read, without a change of the
    fusions."""
    target_compute_capabilities: tuple[tuple[int, int], ...] = ()
    """GPUs for which the backend can build without such a GPU in the machine, as (major, minor). Empty if the backend
    builds only for the GPU on which it runs."""


@dataclass(frozen=True)
class DebugTensor:
    """The values of a tensor between kernels of an engine.

    Attributes:
        values: float32, in memory order, with the shape that the engine reports. Quantized tensors have their quantized
            values, not multiplied by the scale.
        precision: The type of the tensor in the engine.
    """

    values: np.ndarray
    precision: Precision


@dataclass(frozen=True)
class ExecutionMode:
    """The mode in which a device executes a network, such as a CUDA graph.

    Attributes:
        name: Name for users, such as "CUDA graph".
        reason: Reason why no faster mode is used; "" if it is unknown or no faster mode was tried.
    """

    name: str
    reason: str = ""


class ClosingContext:
    """An object that frees its resources at the end of a ``with`` block."""

    def close(self) -> None:
        """Frees the resources of the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@runtime_checkable
class Runner(Protocol):
    """A network that a backend has loaded and can execute; a context manager."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of the network, in their order."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of the network, in their order."""

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Executes the network once and returns its outputs by name.

        Args:
            fetch: Names of the outputs to return; None for all outputs.

        Raises:
            OutOfMemoryError: An allocation failed.
            TrtTuiError: The backend cannot execute this feed.
        """

    def close(self) -> None:
        """Frees the memory of the loaded network, which cannot be executed afterwards."""

    def __enter__(self) -> Self:
        """Returns this runner."""

    def __exit__(self, *exc: object) -> None:
        """Closes this runner."""


class DeviceTensor(Protocol):
    """An execution result that stays on a device. Its values do not change."""

    nbytes: int

    def to_host(self) -> np.ndarray:
        """Returns the result as a host array."""


class PieceRunner(Runner, Protocol):
    """A runner of one piece of a network on a device. Its feeds may contain results of other pieces."""

    def run_keeping_results(
        self, feed: Mapping[str, np.ndarray | DeviceTensor]
    ) -> dict[str, np.ndarray | DeviceTensor]:
        """Executes the piece once and returns all outputs by name, which stay on the device.

        Raises:
            OutOfMemoryError: An allocation failed.
            TrtTuiError: The backend cannot execute this feed.
        """


@runtime_checkable
class Backend(Protocol):
    """The protocol of backends that load and execute ONNX networks."""

    name: str
    version: str
    provider: str
    """The processor or runtime that executes the networks, such as "cpu" or "cuda"."""
    capabilities: BackendCapabilities

    def get_host_backend(self) -> Backend | None:
        """Returns a backend of the same kind in host memory, for networks that do not fit on the device.

        Returns None if this backend uses host memory itself.
        """

    def load(
        self,
        model: ir.Model,
        *,
        low_memory: bool = False,
        optimize: bool = True,
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
        few_executions: bool = False,
        frees_tensors_early: bool = False,
        first_piece: Runner | None = None,
    ) -> Runner:
        """Loads a network for execution. Files are written only where the user does not see them.

        Args:
            model: The network; its weights may be in external data files.
            low_memory: True to minimise peak memory at the cost of a little speed, for graphs with several branches.
            optimize: False keeps every operator as written.
            on_mode_change: A callback for each new execution mode. With it, inputs stay on the device, and an execution
                has as few launches as the graph allows.
            few_executions: True if the network is executed too few times for optimizations to pay off.
            frees_tensors_early: True to execute operators in the order of the graph. A tensor is then freed right after
                the reductions that follow its layer.
            first_piece: The runner of the first piece of the network, if this model is a later piece. The pieces share
                the memory limit of a device.

        Raises:
            OutOfMemoryError: An allocation failed.
            TrtTuiError: The backend refuses the network. The error names the node if the backend reports it.
        """


FixedShape = tuple[int, ...]

Profile = Mapping[str, tuple[FixedShape, FixedShape, FixedShape]]
"""The smallest, usual and largest shape by input name."""

MIN_OPTIMIZATION_LEVEL = 0
"""The lowest optimization level of a builder, at which it times no kernels."""


@dataclass(frozen=True)
class BuildSettings:
    """The settings of one engine build, without precisions.

    Attributes:
        profile: Smallest, usual and largest shape by input name; required for inputs with dynamic dimensions.
        tf32: True if FP32 layers may use TF32.
        compute_capability: Compute capability of the target GPU, as (major, minor); None for the GPU of this machine.
        debug_tensors: True if the tensors between kernels must be readable; see `BackendCapabilities.debug_tensors`.
        builder_options: Options of the TensorRT builder.
        more_profiles: Additional optimization profiles. Inputs that they do not name have the shapes of ``profile``.
    """

    profile: Profile = field(default_factory=dict)
    tf32: bool = False
    compute_capability: tuple[int, int] | None = None
    debug_tensors: bool = False
    builder_options: BuilderOptions = field(default_factory=BuilderOptions)
    more_profiles: tuple[Profile, ...] = ()

    def with_builder_options(self, **changes: Any) -> BuildSettings:
        """Returns the settings with changed fields of the builder options."""
        return replace(self, builder_options=replace(self.builder_options, **changes))


@dataclass(frozen=True)
class LayerConstraints:
    """The layer constraints: precisions, output types and ranges that a TensorRT builder receives beside the graph.

    A builder needs layer constraints if the types of the graph do not decide the precisions.

    Attributes:
        precisions: Precision of the computation, by layer name.
        output_types: Precision in which outputs are stored, by layer name.
        ranges: Dynamic range (amax, in the tensor's own units) by tensor name; empty for explicit quantization.
        precision_flags: Precisions that any layer may use.
        inner_ranges: Range (amax) of the result of each layer of an INT8 group. TensorRT's parser creates several
            layers for some nodes, and the tensors between these layers need a range.
        constant_ranges: Ranges of the constants that INT8 groups read, by initializer name.
        layer_names: Names of all layers of the network, used to recognise the layers that a parser created. If empty,
            the layers of the parser keep their names.
        constraint_mode: "obey" if a build must fail when a constraint cannot be met, "prefer" if it continues then, ""
            for constraints without effect.
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
        """Returns the constraints without the precisions and output types of the named layers."""
        removed_layers = frozenset(layer_names)
        return replace(
            self,
            precisions={name: precision for name, precision in self.precisions.items() if name not in removed_layers},
            output_types={
                name: precision for name, precision in self.output_types.items() if name not in removed_layers
            },
        )


TIMING_CACHE_REFUSED = re.compile(r"timing cache will not be used|(fail\w*|unable) to deserialize timing cache", re.I)
"""The message of a builder that does not accept a timing cache."""

BuildStep = Callable[[str, int, int], bool]
"""A callback with the phase, the number of finished steps and the total (0 if unknown); returns False to stop the
build."""


@runtime_checkable
class EngineRunner(Runner, Protocol):
    """A loaded TensorRT engine that can be executed and inspected."""

    device_memory: int | None
    """Bytes of device memory that an execution needs in addition to weights and tensors; None if unknown."""
    profiles: tuple[Profile, ...]
    """The input shapes of each optimization profile, if there are several. An execution uses the first profile that
    contains the shapes of its feed."""

    def select_profile(self, index: int | None) -> None:
        """Selects the optimization profile of all later executions.

        Args:
            index: Number of the profile. None selects, for each feed, the first profile that contains its shapes.
        """

    def latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """Returns the milliseconds of one execution without a profiler. Inputs and outputs stay on the device."""

    def graph_latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        """Returns the milliseconds of one execution as a CUDA graph, which trtexec 11 measures too.

        Raises:
            TrtTuiError: The execution cannot be captured as a CUDA graph.
        """

    def layer_times_ms(self, feed: Mapping[str, np.ndarray], run_count: int) -> dict[str, float]:
        """Returns the mean milliseconds of each engine layer over ``run_count`` executions with the profiler."""

    def inspect(self) -> str:
        """Returns the JSON of TensorRT's engine inspector."""

    def read_debug_tensors(self, feed: Mapping[str, np.ndarray], names: Container[str]) -> dict[str, DebugTensor]:
        """Executes the engine once and returns the named float outputs and debug tensors.

        The names are those of the engine inspector. Debug tensors can be read only if the engine was built with
        `BuildSettings.debug_tensors`. Tensors that cannot be read are absent from the result.

        Raises:
            TrtTuiError: The engine cannot be executed, or its debug tensors cannot be read.
        """


@runtime_checkable
class EngineBackend(Protocol):
    """The protocol of backends that build engines from ONNX files and execute them."""

    name: str
    version: str
    device: str
    """The name of the GPU; "" if there is none."""
    capabilities: BackendCapabilities

    @property
    def cache_identity(self) -> tuple[object, ...]:
        """The properties that engines depend on: package, version, GPU and driver."""

    def build(
        self,
        model_path: Path,
        settings: BuildSettings,
        constraints: LayerConstraints | None = None,
        *,
        on_step: BuildStep | None = None,
        on_message: Callable[[str, str], None] | None = None,
    ) -> bytes:
        """Builds an engine from an ONNX file and returns its bytes. The call blocks, and may be made from a thread.

        Args:
            constraints: The layer constraints beside the graph; None for a strongly typed build.
            on_message: Called with the level and the text of each message of the builder.

        Raises:
            ParseFailed: The parser refuses the file; the error names the node.
            InputError: The settings cannot be used.
            CancelledError: ``on_step`` returned False.
            BuildFailed: The build failed.
        """

    def load_engine(self, data: bytes) -> EngineRunner:
        """Loads a built engine from its bytes for execution.

        Raises:
            InputError: The engine was built by another version or for another GPU.
            BackendUnavailableError: Engines cannot be executed on this machine.
        """
