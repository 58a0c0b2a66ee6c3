"""The execution of pieces of a network: cut, built, executed, and judged against FP64.

A piece gets the FP32 values of the whole network at its inputs. `PieceProbe` builds it with the settings and the timing
cache of production, so that it can get the same kernels. Where a release has debug tensors, a single kernel is judged
from the values inside the whole engine.
"""

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.engines.engine_cells import EngineCell, find_different_cell, find_piece_boundary, list_engine_cells
from trt_tui.core.engines.inspector import read_engine_report
from trt_tui.core.engines.kernel_results import (
    DequantizeScale,
    KernelResult,
    decode_kernel_result,
    find_kernel_results,
    find_quantized_only_tensors,
)
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.rulebook import GatedFeatures
from trt_tui.core.measure.fault_location import (
    APPROXIMATED_OPERATORS,
    APPROXIMATION_ERROR,
    FAULT_FACTOR,
    Piece,
    PieceState,
    PieceVerdict,
)
from trt_tui.core.measure.fp64_evaluation import Fp64Evaluator, UnsupportedOperatorError, measure_relative_difference
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_outputs import extract_subgraph_of_outputs
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision, precision_rank
from trt_tui.core.runner import BuildSettings, DebugTensor, EngineRunner
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError
from trt_tui.jobs.engine_accuracy import make_build_settings
from trt_tui.jobs.engine_build import BuilderMessage, BuildProgress, BuiltEngine, build_engine, lower_for_builder
from trt_tui.jobs.network_part import Arrays, NetworkPart, cut_network, find_part_profile, select_moves_of_network
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

MAX_RAISED_GROUPS = 16
"""The maximum number of fusion groups that are raised against an overflow."""

MAX_REFERENCE_DIFFERENCE = 1e-3
"""The largest difference between FP64 and FP32 of ONNX Runtime, relative to FP64, that counts as rounding."""

LATENCY_RUNS = 20
"""The number of executions of which the median is the latency of a workaround."""


@dataclass
class TimeLimit:
    """The limit of time of a location. No build begins that would end later if it lasts as long as the last one.

    Args:
        max_seconds: The maximum number of seconds; None for no limit.

    Attributes:
        last_build_s: The duration of the last build in seconds.
    """

    max_seconds: float | None = None
    start_time: float = field(default_factory=time.monotonic)
    last_build_s: float = 0.0

    def can_build(self) -> bool:
        """Returns True if a build of the duration of the last one would end within the limit."""
        return self._remaining_s() > self.last_build_s

    def has_time(self) -> bool:
        """Returns False once the limit is reached."""
        return self._remaining_s() > 0

    def _remaining_s(self) -> float:
        return math.inf if self.max_seconds is None else self.start_time + self.max_seconds - time.monotonic()


@dataclass
class PieceProbe:
    """The builds and executions of one location.

    Args:
        config: The precisions of the engine.
        feed: The feed on which everything is judged.
        checks_rows: True to search for a kernel whose result depends on the position in the batch.
        scratch: A folder for timing caches.
        limit: The limit of time.

    Attributes:
        is_timing_cache_refused: True once the builder has not used a timing cache. No further build gets one.
        cells: The cells of the engine; empty until `judge_engine` has read them.
        build_count, build_s: The number of builds, and their duration in seconds.
        rebuilt_cells: The cells of each rebuild of the whole network.
    """

    workspace: Workspace
    store: ResultStore
    reporter: JobReporter
    config: PrecisionConfig
    feed: Arrays
    scratch: Path
    limit: TimeLimit = field(default_factory=TimeLimit)
    checks_rows: bool = False
    is_timing_cache_refused: bool = False
    cells: tuple[EngineCell, ...] = ()
    build_count: int = 0
    build_s: float = 0.0
    rebuilt_cells: list[tuple[EngineCell, ...]] = field(default_factory=list)
    _parts: dict[tuple[int, ...], NetworkPart] = field(default_factory=dict)
    _values: Arrays = field(default_factory=dict)
    _tensor_types: dict[str, Precision] = field(default_factory=dict)
    _readings: Arrays | None = None
    _reading_scales: dict[str, DequantizeScale] = field(default_factory=dict)
    _quantized_tensors: dict[str, DequantizeScale] | None = None

    @property
    def network(self) -> Network:
        return self.workspace.network

    @property
    def reads_cells(self) -> bool:
        """True if the values between the kernels of an engine can be read."""
        builder = self.workspace.builder
        return builder is not None and builder.capabilities.debug_tensors and not self.checks_rows

    # -- pieces -----------------------------------------------------------------------------------------------------

    def read_engine(self, runner: EngineRunner) -> None:
        """Reads the cells of the engine, and the types between them."""
        report = read_engine_report(runner.inspect(), self.network)
        self.cells = list_engine_cells(report, self.network)
        for layer in report.layers:
            self._tensor_types.update(
                {name: precision for name, precision in zip(layer.output_tensors, layer.output_types, strict=True)
                 if precision in FLOAT_PRECISIONS and precision is not None})

    def list_layers(self, cells: Collection[int]) -> list[str]:
        """Returns the layers of some cells, in network order; all layers of the network for all cells."""
        if len(cells) == len(self.cells):
            return [layer.name for layer in self.network.layers]
        names = {name for index in cells for name in self.cells[index].layers}
        return [layer.name for layer in self.network.layers if layer.name in names]

    def get_part(self, cells: tuple[int, ...], *, is_limited: bool = True) -> NetworkPart:
        """Returns the network of some cells with its inputs and results.

        Args:
            is_limited: True if the limit of time also ends the computation in FP64.

        Raises:
            UnsupportedOperatorError: FP64 has no reference of an operator.
            InputError: The cells cannot be cut out.
            TrtTuiError: The limit of time is reached.
        """
        if cells not in self._parts:
            layers = self.list_layers(cells)
            inputs, outputs = find_piece_boundary(self.network, layers)
            if len(cells) == len(self.cells):
                feed, network, config = self.feed, self.network, self.config
                outputs = list_tensor_outputs(network)
            else:
                feed = {name: self._read_values(inputs)[name] for name in inputs}
                network = cut_network(self.network, layers, inputs, outputs, feed)
                config = select_moves_of_network(self.config, network)
            outputs = tuple(name for name in outputs if network.is_any_float(name))
            scales = {} if len(cells) == len(self.cells) else self._find_output_scales(outputs)
            has_time = self.limit.has_time if is_limited else lambda: True
            self._parts[cells] = replace(self._compute_part(network, config, feed, outputs, has_time), scales=scales)
        return self._parts[cells]

    def _find_output_scales(self, tensors: Collection[str]) -> dict[str, DequantizeScale]:
        """Finds the scales of the tensors that the engine writes as quantized values; none for layer constraints."""
        builder = self.workspace.builder
        if self._quantized_tensors is None:
            self._quantized_tensors = {}
            if builder is not None and not self.workspace.plan.weakly_typed:
                lowered = lower_for_builder(self.network, self.config, self.workspace.ranges, builder.capabilities,
                                            builder.name)
                self._quantized_tensors = find_quantized_only_tensors(lowered.model, self.network)
        return {name: self._quantized_tensors[name] for name in tensors if name in self._quantized_tensors}

    def _read_values(self, names: Sequence[str]) -> Arrays:
        """Returns tensors of the whole network in FP32."""
        if missing := [name for name in names if name not in self._values and name not in self.feed]:
            network = self.network
            with load_adaptive_runner(self.workspace.backend, extract_subgraph_of_outputs(network.model, missing),
                                      self.workspace.data_sets.judged_samples, low_memory=True,
                                      few_executions=True) as runner:
                self._values.update(runner.run(self.feed, missing))
        return {**self.feed, **self._values}

    def _compute_part(self, network: Network, config: PrecisionConfig, feed: Arrays,
                      outputs: Sequence[str], has_time: Callable[[], bool] = lambda: True) -> NetworkPart:
        evaluator = Fp64Evaluator(network.model)
        expected = evaluator.evaluate(feed, outputs, has_time=has_time)
        with self.workspace.backend.load(extract_subgraph_of_outputs(network.model, outputs), low_memory=True,
                                         few_executions=True) as runner:
            fp32_outputs = runner.run(feed, list(outputs))
        self._require_same_reference(network, evaluator, feed, expected, fp32_outputs)
        precisions = {precision.value_type for precision in config.precision_by_group(network).values()}
        floats = [precision for precision in (*precisions, config.other if precisions - {*FLOAT_PRECISIONS} else
                                              Precision.FP32) if precision in FLOAT_PRECISIONS]
        lowest = min(floats, key=precision_rank, default=Precision.FP32)
        if config.tf32 and lowest is Precision.FP32:
            lowest = Precision.TF32
        if precisions - {Precision.FP32} or config.tf32:
            return NetworkPart(network, config, feed, expected, self._simulate(network, config, feed, outputs),
                               fp32_outputs,
                               lowest)
        operators = tuple(sorted({layer.op_type for layer in network.layers} & APPROXIMATED_OPERATORS))
        predicted = fp32_outputs
        if operators:
            approximated = evaluator.evaluate(feed, outputs, has_time=has_time,
                                              relative_errors=dict.fromkeys(operators, APPROXIMATION_ERROR))
            predicted = {name: expected[name] + np.hypot(fp32_outputs[name] - expected[name],
                                                         approximated[name] - expected[name]) for name in outputs}
        return NetworkPart(network, config, feed, expected, predicted, fp32_outputs, lowest,
                           approximated_operators=operators)

    def _require_same_reference(self, network: Network, evaluator: Fp64Evaluator, feed: Arrays, expected: Arrays,
                                fp32_outputs: Arrays) -> None:
        """Checks that FP64 and ONNX Runtime differ by rounding only, because their difference counts as explained.

        Raises:
            ReferenceMismatchError: They compute a node differently from the same inputs.
        """
        if all(measure_relative_difference(fp32_outputs[name], expected[name]) <= MAX_REFERENCE_DIFFERENCE
               for name in expected):
            return
        names = [name for layer in network.layers for name in layer.outputs if name and network.is_any_float(name)]
        with self.workspace.backend.load(extract_subgraph_of_outputs(network.model, names), low_memory=True,
                                         few_executions=True) as runner:
            mismatch = evaluator.find_mismatch({**feed, **runner.run(feed, names)}, MAX_REFERENCE_DIFFERENCE)
        if mismatch is not None:
            raise mismatch

    def list_approximated_operators(self) -> tuple[str, ...]:
        """Returns the operators of which a fast approximation counts as explained, in the parts so far."""
        return tuple(sorted({name for part in self._parts.values() for name in part.approximated_operators}))

    def _simulate(self, network: Network, config: PrecisionConfig, feed: Arrays, outputs: Sequence[str]) -> Arrays:
        """Returns the simulated results of a network in the precisions of a config."""
        features = GatedFeatures.from_config(network, config)
        graph = build_gated_graph(network, float_types=features.float_types, boundary_types=features.boundary_types,
                                  quantized_types=features.quantized_types, outputs=outputs,
                                  editable_constants=features.editable_constants,
                                  norm_operators=features.norm_operators, new_constants=features.new_constants)
        with self.workspace.backend.load(graph.model, low_memory=True, few_executions=True) as runner:
            results = runner.run({**feed, **graph.make_feed(config, self.workspace.ranges)},
                                 [graph.test_outputs[name] for name in outputs])
        return {name: results[graph.test_outputs[name]] for name in outputs}

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def judge_engine(self, data: bytes) -> Steps[PieceVerdict]:
        """Returns the verdict on the engine of the whole network, and reads its cells."""
        assert self.workspace.builder is not None, "engines run here"
        yield Urgency.BUILD
        with self.workspace.builder.load_engine(data) as runner:
            self.read_engine(runner)
            verdict = self._judge_runner(runner, tuple(range(len(self.cells))))
        if verdict.state is not PieceState.FAULTY or not verdict.faults or not all(
                fault.is_overflow for fault in verdict.faults if fault.ratio > FAULT_FACTOR):
            return verdict
        overflow = self._find_overflow(self.config)
        if overflow is None:
            return verdict
        group, text = overflow
        cells = self._find_cells([group.final_tensor])
        return replace(verdict, suspects=cells, explanation=(
            f"{text}; the engine has NaN or Inf only where the simulation has") if cells else "")

    def _find_cells(self, tensors: Sequence[str]) -> tuple[int, ...]:
        """Returns the cells that compute some tensors, by index."""
        producers = [self.network.producer.get(name, "") for name in tensors]
        return tuple(dict.fromkeys(index for name in producers for index, cell in enumerate(self.cells)
                                   if name in cell.layers))

    def _find_overflow(self, config: PrecisionConfig) -> tuple[FusionGroup, str] | None:
        """Finds the first group whose simulated result is NaN or Inf where FP32 is finite, with the number of them.

        Returns None if there is none.
        """
        groups = [group for group in self.network.groups if self.network.is_float(group.final_tensor)]
        names = list(dict.fromkeys(group.final_tensor for group in groups))
        simulated, exact = self._simulate(self.network, config, self.feed, names), self._read_values(names)
        group_by_tensor = {group.final_tensor: group for group in groups}
        for name in (name for layer in self.network.layers for name in layer.outputs if name in group_by_tensor):
            count = int((~np.isfinite(simulated[name]) & np.isfinite(exact[name])).sum())
            if count:
                group = group_by_tensor[name]
                precision = config.precision_of(group).value_type.label
                return group, (f"{group.name} overflows the range of {precision} in the simulation as the first layer: "
                               f"{count} NaN or Inf; values up to {np.max(np.abs(exact[name])):.3g} in FP32")
        return None

    def find_groups_to_raise(self) -> list[FusionGroup]:
        """Returns the groups that must be FP32 so that the simulation has no NaN or Inf; [] if none are found."""
        config, raised = self.config, list[FusionGroup]()
        while len(raised) < MAX_RAISED_GROUPS and self.limit.has_time():
            overflow = self._find_overflow(config)
            if overflow is None:
                return raised
            if overflow[0] in raised:
                break
            raised.append(overflow[0])
            config = config.with_group_precision(raised, Precision.FP32, "location")
        return []

    def judge_piece(self, piece: Piece) -> Steps[PieceVerdict]:
        """Builds and executes a piece, or reads it in the engine. Returns the verdict."""
        try:
            if piece.is_read:
                return self._judge_readings(piece.cells)
            if piece.is_marked:
                return (yield from self._judge_marked_engine())
            part = self.get_part(piece.cells)
        except (CancelledError, BackendUnavailableError):
            raise
        except UnsupportedOperatorError as error:
            return PieceVerdict(PieceState.NOT_JUDGED, f"{error.title}: {error.cause}")
        except TrtTuiError as error:  # a piece that cannot be cut out decides nothing
            return PieceVerdict(PieceState.NOT_COMPARABLE, error.title)
        yield Urgency.BUILD
        try:
            data = yield from self.build(part, self._settings(part, piece.rebuild))
            return self._judge_built_piece(data, part, piece)
        except (CancelledError, BackendUnavailableError):
            raise
        except TrtTuiError as error:
            state = PieceState.NOT_BUILT if piece.rebuild else PieceState.NOT_COMPARABLE
            return PieceVerdict(state, ": ".join(filter(None, (error.title, error.cause))))

    def _judge_built_piece(self, data: bytes, part: NetworkPart, piece: Piece) -> PieceVerdict:
        """Loads and executes the engine of a piece. Returns the verdict.

        Raises:
            TrtTuiError: The engine cannot be loaded or executed.
        """
        assert self.workspace.builder is not None, "engines run here"
        with self.workspace.builder.load_engine(data) as runner:
            cells = list_engine_cells(read_engine_report(runner.inspect(), part.network), part.network)
            if piece.rebuild:
                self.rebuilt_cells.append(cells)
                if self.reads_cells and self._readings is None:
                    self._readings = self._read_kernels(runner, part)
            different = "" if piece.rebuild else find_different_cell(self.cells, cells)
            return self._judge_runner(runner, piece.cells).apply_kernel_difference(different)

    def _judge_marked_engine(self) -> Steps[PieceVerdict]:
        """Builds the network with the results of all cells as outputs.

        Returns the verdict on the network's outputs, with the cells whose results have too large an error, in order.
        """
        outputs = [name for name in list_tensor_outputs(self.network) if self.network.is_any_float(name)]
        ends = {name for cell in self.cells for name in find_piece_boundary(self.network, cell.layers)[1]
                if self.network.is_float(name) and not BarrierMove().refusal_reason(self.network, name)}
        names = [name for layer in self.network.layers for name in layer.outputs if name in ends or name in outputs]
        config = self.config.with_moves({name: BarrierMove("location") for name in names if name in ends})
        part = replace(self._compute_part(self.network, self.config, self.feed, names, self.limit.has_time),
                       config=config)
        yield Urgency.BUILD
        data = yield from self.build(part, self._settings(part, 0))
        assert self.workspace.builder is not None, "engines run here"
        with self.workspace.builder.load_engine(data) as runner:
            offered = {info.name for info in runner.outputs}
            results = runner.run(self.feed, [name for name in names if name in offered])
        verdict = part.judge({name: results[name] for name in outputs if name in results}, checks_rows=self.checks_rows)
        faulty = [name for name in names if name in results and part.judge(
            {name: results[name]}, checks_rows=self.checks_rows).state is PieceState.FAULTY]
        suspects = self._find_cells(faulty)
        first = self.cells[suspects[0]].name if suspects else ""
        note = f"the first fused layer with too large an error is {first}" if first else \
            "the fault disappears" if verdict.state is PieceState.SOUND else ""
        return replace(verdict, note=f"marked engine: {note or verdict.description}", suspects=suspects)

    def _judge_runner(self, runner: EngineRunner, cells: tuple[int, ...]) -> PieceVerdict:
        try:  # the engine itself is judged in any case
            part = self.get_part(cells, is_limited=len(cells) < len(self.cells))
        except UnsupportedOperatorError as error:
            return PieceVerdict(PieceState.NOT_JUDGED, f"{error.title}: {error.cause}")
        names = {info.name for info in runner.outputs}
        return part.judge(runner.run(part.feed, [name for name in part.expected if name in names]),
                          checks_rows=self.checks_rows)

    def _read_kernels(self, runner: EngineRunner, part: NetworkPart) -> Arrays:
        """Returns the results between the kernels of the whole engine, by tensor of the network."""
        builder = self.workspace.builder
        assert builder is not None
        lowered = lower_for_builder(part.network, part.config, self.workspace.ranges, builder.capabilities,
                                    builder.name, self.workspace.plan.weakly_typed)
        text = runner.inspect()
        results = find_kernel_results(read_engine_report(text, part.network), part.network, lowered.model, text)
        handed = runner.read_debug_tensors(part.feed, {output.tensor for result in results.values()
                                                       for output in result.possible_outputs})
        expected = self._read_values([result.tensor for result in results.values()])
        readings = {}
        for result in results.values():
            reading, scale = _choose_reading(handed, result, expected[result.tensor])
            if reading is not None:
                readings[result.tensor] = reading
                if scale is not None:
                    self._reading_scales[result.tensor] = scale
        return {**self.feed, **readings}

    def _judge_readings(self, cells: tuple[int, ...]) -> PieceVerdict:
        """Returns the verdict on a cell from the values that the engine itself has at its inputs and outputs."""
        layers = self.list_layers(cells)
        inputs, outputs = find_piece_boundary(self.network, layers)
        readings = self._readings or {}
        feed = {name: readings.get(name, self._read_values([name])[name] if not self.network.is_float(name) else None)
                for name in inputs}
        if any(array is None for array in feed.values()) or not any(name in readings for name in outputs):
            return PieceVerdict(PieceState.NOT_COMPARABLE, "its values are inside a kernel")
        arrays = {name: np.asarray(array) for name, array in feed.items()}
        network = cut_network(self.network, layers, inputs, outputs, arrays)
        part = self._compute_part(network, select_moves_of_network(self.config, network), arrays,
                                  [name for name in outputs if name in readings])
        part = replace(part, scales={name: scale for name, scale in self._reading_scales.items()
                                     if name in part.expected})
        verdict = part.judge(readings)
        if verdict.state is PieceState.FAULTY:
            self._parts.setdefault(cells, part)
        return verdict

    # -- builds -----------------------------------------------------------------------------------------------------

    def _settings(self, part: NetworkPart, rebuild: int) -> BuildSettings:
        """Returns the build settings of a part: those of production, with a timing cache of the location.

        A rebuild without a timing cache of production measures all tactics again. Nothing gets a timing cache that the
        builder refuses.
        """
        workspace, builder = self.workspace, self.workspace.builder
        settings = make_build_settings(workspace.analysis, workspace.feeds, workspace.plan, self.config)
        cache = self.scratch / (f"rebuild{rebuild}.cache" if rebuild else "pieces.cache")
        production = settings.builder_options.timing_cache
        source = Path(production) if production else None if rebuild else self.scratch / "rebuild1.cache"
        if source is not None and not cache.exists() and source.is_file():
            shutil.copyfile(source, cache)
        profile = settings.profile if part.network is self.network else find_part_profile(
            self.network, part.network, settings.profile, part.feed)
        reads = builder is not None and builder.capabilities.debug_tensors and bool(rebuild)
        return replace(settings, profile=profile, debug_tensors=reads,
                       builder_options=replace(settings.builder_options, timing_cache="" if self.is_timing_cache_refused
                                               else str(cache)))

    def make_settings(self) -> BuildSettings:
        """Returns the build settings of the whole network with the timing cache of the pieces."""
        return self._settings(NetworkPart(self.network, self.config, self.feed, {}, {}, {}, Precision.FP32), 0)

    def build(self, part: NetworkPart, settings: BuildSettings,
              rewritten_operators: Collection[str] = ()) -> Steps[bytes]:
        """Builds the engine of a part and returns its bytes.

        Args:
            rewritten_operators: The operators that are written as their ONNX function.
        """
        workspace, builder = self.workspace, self.workspace.builder
        assert builder is not None
        is_whole = part.network is self.network
        types = {} if is_whole else {name: self._tensor_types[name] for name in (*part.feed, *part.expected)
                                     if self._tensor_types.get(name) not in (None, Precision.FP32)
                                     and name not in part.scales}
        steps = build_engine(builder, part.network, part.config, workspace.ranges, settings, cache=None,
                             wake=self.reporter.wake, weakly_typed=workspace.plan.weakly_typed, strict=True,
                             kept_tensors=workspace.analysis.extra_outputs if is_whole else (), boundary_types=types,
                             quantized_outputs=part.scales, rewritten_operators=rewritten_operators)
        start_time, self.build_count = time.monotonic(), self.build_count + 1
        try:
            with contextlib.closing(steps):
                for step in steps:
                    match step:
                        case BuiltEngine():
                            self.is_timing_cache_refused |= step.is_timing_cache_refused
                            return step.data
                        case BuilderMessage():
                            self.reporter.send(step.make_log_message(self.reporter.job))
                        case BuildProgress():
                            self.reporter.send_progress(f"build {self.build_count} of the location: {step.phase}",
                                                        step.done, step.total, start_time)
                            yield Urgency.BUILD
                        case Wait():
                            yield step
        finally:
            self.limit.last_build_s = time.monotonic() - start_time
            self.build_s += self.limit.last_build_s
        raise AssertionError("a build ends with an engine")

    def measure_whole(self, config: PrecisionConfig, settings: BuildSettings,
                      rewritten_operators: Collection[str] = ()) -> Steps[tuple[PieceVerdict, float]]:
        """Builds the whole network in another way. Returns the verdict, and the median latency in ms.

        Args:
            rewritten_operators: The operators that are written as their ONNX function.

        Raises:
            TrtTuiError: The build or an execution failed.
        """
        assert self.workspace.builder is not None
        outputs = [name for name in list_tensor_outputs(self.network) if self.network.is_any_float(name)]
        part = self._compute_part(self.network, config, self.feed, outputs)
        data = yield from self.build(part, settings, rewritten_operators)
        with self.workspace.builder.load_engine(data) as runner:
            verdict = part.judge(runner.run(self.feed, outputs), checks_rows=self.checks_rows)
            return verdict, measure_latency_ms(runner, self.feed)


def measure_latency_ms(runner: EngineRunner, feed: Mapping[str, np.ndarray]) -> float:
    """Returns the median milliseconds of an execution."""
    runner.latency_ms(feed)
    return float(np.median([runner.latency_ms(feed) for _ in range(LATENCY_RUNS)]))


def _choose_reading(debug_tensors: Mapping[str, DebugTensor], result: KernelResult,
                    expected: np.ndarray) -> tuple[np.ndarray | None, DequantizeScale | None]:
    """Returns the reading of a debug tensor that is nearest to FP32, and the scale of quantized values.

    Both are None if it cannot be read.
    """
    readings = [(reading, output.scale) for output in result.possible_outputs for reading in decode_kernel_result(
        debug_tensors, replace(result, possible_outputs=(output,)), expected.shape)]
    with np.errstate(all="ignore"):
        distances = [float(np.nansum(np.square(np.nan_to_num(reading.astype(np.float64)) - expected)))
                     for reading, _ in readings]
    return readings[int(np.argmin(distances))] if readings else (None, None)
