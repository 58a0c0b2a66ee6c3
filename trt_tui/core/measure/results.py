"""The records of a comparison, which ``compare --json`` writes and the app shows.

A value that was not measured is None here and absent in the file; it is never zero.

A run is anything with outputs that are compared with a reference: simulated, executed, built or dumped.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from trt_tui.core.data.batches import SampleName
from trt_tui.core.engines.fallback_ladder import BuildAttempt, NoEngineError, join_lines
from trt_tui.core.engines.group_implementations import GroupImplementation, Preview
from trt_tui.core.engines.inspector import EngineReport, find_first_different_kernel
from trt_tui.core.measure.error_metrics import MIN_SAMPLES, AccuracyIntervals, ErrorMetric, ErrorMetrics
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import (
    SIMULATED_MARK,
    builder_device_text,
    counted_noun_text,
    escape_hidden_characters,
    milliseconds_text,
    number_text,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


MAX_RECENT_RESULTS = 32
"""The maximum number of results of one kind that a session can request again."""


@dataclass(frozen=True)
class ResultKind(Generic[K, V]):
    """A kind of measured values, each with a key, such as a config or the name of a group.

    Attributes:
        name: A unique name.
        max_kept: The number of values that a session keeps, the newest; None for all. The session requests an older
            value again when it is needed.
    """

    name: str
    max_kept: int | None = None


class RunKind(Enum):
    """The origin of the outputs of a run. Records contain the values of this enum."""

    SIMULATED_CONFIG = "simulated"
    TYPED_NETWORK = "typed"
    EXPORTED_FILE = "exported"
    BUILT_ENGINE = "built"
    NETWORK_FILE = "network"
    DUMP = "outputs"
    ENGINE_FILE = "engine"


@dataclass(frozen=True)
class Run:
    """Something with outputs that are compared with the reference and with other runs, such as an engine or a dump.

    Attributes:
        name: The name in tables, where the run has one row.
        config_name: The name of the config of a simulated or built run, from `trt_tui.formatting.RUN_TITLES`.
        config: That config, under which the results are stored; None until it is known.
        file_path: The file of a run that is read from a file, as the user named it.
        unavailable_reason: The reason why the run has no outputs, "" if it has outputs.
        files: All files of a run that is read from files; empty until they are opened.
    """

    name: str
    kind: RunKind
    config_name: str = ""
    config: PrecisionConfig | None = None
    file_path: str = ""
    unavailable_reason: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class OutputErrors:
    """The error metrics of one judged output, with its worst sample.

    Attributes:
        worst_sample: The name of the worst sample; None if unknown.
        worst_sqnr_db: SQNR of the worst sample in dB; None if unknown or not finite.
        variation_db: The energy of the reference's deviations from their mean over samples, relative to its energy;
            minus infinity if all samples are equal. None with one sample, and until all samples are measured.
    """

    errors: ErrorMetrics
    worst_sample: SampleName | None = None
    worst_sqnr_db: float | None = None
    variation_db: float | None = None

    @property
    def sqnr_against_variation_db(self) -> float | None:
        """The SQNR against the part of the reference that varies between samples; None if SQNR or variation is unknown."""
        levels_db = self.errors.sqnr_db, self.variation_db
        return levels_db[0] + levels_db[1] if levels_db[0] is not None and levels_db[1] is not None else None


@dataclass(frozen=True)
class Caveat:
    """A reason why the values of a run may not hold in production.

    Attributes:
        kind: A short name for records: "failed run", "overflow", "may overflow", "unchecked range", "known gap",
            "data dependent", "builds differ", "not executed", "not met as exported", "no engine", "unjudged output",
            "unsimulated layers", "random inputs",
            `STEADY_OUTPUT`, `PARTLY_JUDGED_OUTPUT`, `DECISIVE_SAMPLES`, `SIMULATION_GAP` or "other precisions".
        text: The reason as one sentence without a full stop.
        gap_db: The margin to the target, in dB, below which the caveat counts; None if it always counts.
        fails_run: True if the run misses every target, whatever its values are.
    """

    kind: str
    text: str
    gap_db: float | None = None
    fails_run: bool = False


PARTLY_JUDGED_OUTPUT = "partly judged output"
"""The kind of a caveat that does not count for targets of the metric, which reads the outputs themselves."""

STEADY_OUTPUT = "steady output"
"""The kind of a caveat that counts for targets of a ratio of energies only, unless the output hardly varies at all."""

DECISIVE_SAMPLES = "decisive samples"
"""The kind of a caveat that counts for targets of a ratio of energies only."""

SIMULATION_GAP = "simulation gap"
"""The kind of a caveat that counts for targets of an error energy only: the gap was measured in dB of SQNR."""

GAP_KINDS = ("known gap", SIMULATION_GAP)
"""The kinds of caveats that no longer count once the engine of the config itself was measured."""

RANDOM_INPUTS_CAVEAT = Caveat("random inputs", "the inputs are random, and real data may lose more")


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a run: its errors, metric and top-1 agreement at the judged outputs, without pass or fail.

    Attributes:
        outputs: Errors by judged output name.
        metric: The user's metric and its parts; the first entry is the headline. Empty without a metric.
        agreement: Top-1 agreement: the fraction of samples with the same top class as the reference, for a classifier
            without labels.
        samples: Number of samples measured so far; ``total`` is the number of all samples.
        judged_error: The error that error shares are fractions of: the sum of Σ(test-ref)²/Σref² over the float
            outputs. If all judged outputs are integers, the sum of the fractions that differ.
        intervals: The confidence intervals over samples; None until all samples are measured, and with too few samples.
        caveats: Reasons why the values may not hold in production; the target result takes them into account.
        meaningless_accuracies: The accuracy of meaningless outputs, by the change that was made to the reference's
            outputs; see `trt_tui.core.measure.simulation`. A target that one of them meets is trivial.
        reference_metric: The metric of the reference and its parts on the same samples; empty without a metric.
        compared_outputs: The errors on the samples that judge every run, which runs are compared on; empty if these
            are all samples of this run. ``compared_metric`` is the metric on them.
    """

    outputs: Mapping[str, OutputErrors]
    metric: Mapping[str, float] = field(default_factory=dict)
    agreement: float | None = None
    samples: int = 0
    total: int = 0
    judged_error: float | None = None
    intervals: AccuracyIntervals | None = None
    caveats: tuple[Caveat, ...] = ()
    meaningless_accuracies: "Mapping[str, Accuracy]" = field(default_factory=dict)
    reference_metric: Mapping[str, float] = field(default_factory=dict)
    compared_outputs: Mapping[str, OutputErrors] = field(default_factory=dict)
    compared_metric: Mapping[str, float] = field(default_factory=dict)

    @property
    def accuracy_on_compared_samples(self) -> "Accuracy":
        """The accuracy on the samples that judge every run, without confidence intervals. NaN and Inf of all samples
        stay."""
        return (
            replace(
                self, outputs=self.compared_outputs, metric=self.compared_metric, reference_metric={}, intervals=None
            )
            if self.compared_outputs and not self.nonfinite_count
            else self
        )

    @property
    def worst_sample_errors(self) -> OutputErrors | None:
        """The errors of the float output that has the worst sample. A sample with NaN or Inf is the worst."""
        return min(
            (output for output in self.outputs.values() if output.worst_sample is not None),
            key=lambda output: -math.inf if output.worst_sqnr_db is None else output.worst_sqnr_db,
            default=None,
        )

    @property
    def worst_output(self) -> tuple[str, OutputErrors] | None:
        """The name and errors of the float output with the lowest SQNR; an output with NaN or Inf comes first."""
        float_outputs = [item for item in self.outputs.items() if item[1].errors.mismatch is None]
        return min(
            float_outputs,
            key=lambda item: item[1].errors.comparable_sqnr_db,
            default=next(iter(self.outputs.items()), None),
        )

    @property
    def worst_errors(self) -> ErrorMetrics | None:
        return self.worst_output[1].errors if self.worst_output is not None else None

    def find_worst_value(self, metric: ErrorMetric, output_name: str | None = None) -> float | None:
        """Returns the value of an error metric at a judged output, or by default the worst value over all outputs.

        The output with the worst SQNR need not have the worst cosine. None if no output has the metric, or if one of
        the values is unknown.
        """
        values = [
            entry.errors.value(metric)
            for name, entry in self.outputs.items()
            if (
                name == output_name
                if output_name is not None
                else (entry.errors.mismatch is not None) is metric.is_for_integers_only
            )
        ]
        known_values = [value for value in values if value is not None]
        if not known_values or len(known_values) < len(values):
            return None
        return min(known_values) if metric.is_higher_better else max(known_values)

    def find_output_of_worst_value(self, metric: ErrorMetric) -> str:
        """Returns the name of the judged output with the worst value of an error metric, or with NaN or Inf.

        "" if there is only one output, or if all are exact.
        """
        if self.nonfinite_count and len(self.outputs) > 1:
            return next(name for name, entry in self.outputs.items() if entry.errors.nonfinite_count)
        values = {
            name: value
            for name, entry in self.outputs.items()
            if (entry.errors.mismatch is not None) is metric.is_for_integers_only
            and (value := entry.errors.value(metric)) is not None
        }
        if len(values) < 2 or all(self.outputs[name].errors.exact for name in values):
            return ""
        return (min if metric.is_higher_better else max)(values, key=values.__getitem__)

    @property
    def nonfinite_count(self) -> int:
        return sum(output_errors.errors.nonfinite_count for output_errors in self.outputs.values())

    @property
    def fails_every_target(self) -> bool:
        return any(caveat.fails_run for caveat in self.caveats)

    @property
    def headline_metric(self) -> float | None:
        return next(iter(self.metric.values()), None)


def restrict_to_common_samples(accuracies: Sequence[Accuracy]) -> list[Accuracy]:
    """Returns comparable accuracies, which are restricted to the samples that judge all their runs."""
    is_same = len({accuracy.total for accuracy in accuracies}) < 2
    return [accuracy if is_same else accuracy.accuracy_on_compared_samples for accuracy in accuracies]


@dataclass(frozen=True)
class Cause:
    """A known cause of the accuracy loss at a fusion group; see `trt_tui.core.measure.causes`.

    Attributes:
        kind: A short name for records, such as "range" or "overflow".
        sentence: The cause as one sentence without a full stop.
        evidence: The measured values behind the sentence.
        remedy: The next step, as an imperative.
    """

    kind: str
    sentence: str
    evidence: str
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.sentence}: {self.evidence}"


@dataclass(frozen=True)
class CoordinateShift:
    """The shift of sampling points or angles by the rounding of a coordinate to a 16-bit float type.

    Attributes:
        precision: The 16-bit float type.
        magnitude: The largest magnitude that is rounded.
        shift: The largest shift, in ``unit``: "pixels" or "radians".
        reader: The operator and the name of the layer that reads the coordinate.
    """

    precision: Precision
    magnitude: float
    shift: float
    unit: str
    reader: str

    @property
    def points_title(self) -> str:
        return f"{'angles' if self.unit == 'radians' else 'sampling points'} of {self.reader}"

    @property
    def shift_text(self) -> str:
        return f"{number_text(self.shift)} {self.unit} (more than 1/32)"

    @property
    def warning_text(self) -> str:
        return (
            f"half a step of {self.precision.label} at {number_text(self.magnitude)} moves the {self.points_title} "
            f"by up to {self.shift_text}; FP32 avoids it"
        )


@dataclass(frozen=True)
class GroupErrors:
    """The errors and FP16 range of one group in one run.

    Attributes:
        accumulated: Error with the whole network in the precisions of the run.
        isolated: Error with the group in the precision of the run, and all its inputs from the reference.
        precision: The precision of the group.
        ref_max: Largest absolute value of the reference tensor.
        fp16_finding: The finding about values that FP16 makes infinite or 0, or that hardly fit, as a sentence; "" if
            there is none.
        fp16_over: Number of values of the reference tensor above the largest FP16 number; None if FP16 was not
            examined.
        fp16_under: Number of nonzero values below the smallest FP16 magnitude; None if FP16 was not examined.
        fp16_largest: Largest FP32 magnitude that the group rounds, at its last tensor or before; None if FP16 was not
            examined.
        fp16_largest_layer: The layer that computes it.
        fp16_state: A value of `trt_tui.core.measure.fp16_range.Fp16RangeState`; "" if FP16 was not examined.
        weight_sqnr_db: SQNR of each quantized weight against FP32, by the layer that reads it; None if it is exact.
        coordinate_shift: The shift of coordinates that the group rounds too coarsely; None if there are none.
    """

    precision: Precision
    accumulated: ErrorMetrics | None = None
    isolated: ErrorMetrics | None = None
    ref_max: float | None = None
    fp16_finding: str = ""
    fp16_over: int | None = None
    fp16_under: int | None = None
    fp16_largest: float | None = None
    fp16_largest_layer: str = ""
    fp16_state: str = ""
    weight_sqnr_db: Mapping[str, float | None] = field(default_factory=dict)
    coordinate_shift: CoordinateShift | None = None

    @property
    def has_overflow(self) -> bool:
        """True if FP16 rounds a value of the group to infinity, with or without an effect."""
        return self.fp16_state not in ("", "safe")

    @property
    def warning_text(self) -> str:
        """The warning that values overflow or vanish in FP16, or else that coordinates lose digits; "" if there is none."""
        finding = "" if self.fp16_state == "overflows without effect" else self.fp16_finding
        return finding or (self.coordinate_shift.warning_text if self.coordinate_shift is not None else "")


@dataclass(frozen=True)
class ErrorShare:
    """The share of the judged error that one fusion group causes.

    Attributes:
        fraction: (E(c) - E(c, group in FP32)) / E(c); may be slightly negative. NaN if it is unknown.
        sqnr_if_raised_db: SQNR of the worst judged output in dB if this group alone is raised to FP32 (``impact_kept``
            in records). None if it is exact or not finite.
        samples: Number of judged samples behind all values of this object.
        half_width: Half the width of the 95 % confidence interval of ``fraction``. None if all samples were measured,
            or too few for an interval.
        unknown_reason: The reason why ``fraction`` has no meaning, "" if it has one.
    """

    fraction: float
    sqnr_if_raised_db: float | None = None
    samples: int = 0
    half_width: float | None = None
    unknown_reason: str = ""

    @property
    def has_few_samples(self) -> bool:
        """True if the share was measured on too few samples for a confidence interval, because there are no more."""
        return 0 < self.samples < MIN_SAMPLES

    def overlaps(self, other: "ErrorShare") -> bool:
        """Returns True if the order of two shares is not certain, because their confidence intervals overlap.

        False if neither share has an interval.
        """
        margin = (self.half_width or 0.0) + (other.half_width or 0.0)
        return margin > 0 and abs(self.fraction - other.fraction) <= margin


UNFUSED, MARKED = "unfused", "marked"
"""The two ways to read tensors inside an engine. Unfused: debug tensors between the kernels of the engine as built.
Marked: outputs of a second engine with every group's result as an output, which is not the engine as built."""


@dataclass(frozen=True)
class EngineErrors:
    """Errors inside an engine, at the last tensors of the groups, against FP32 of the network.

    Attributes:
        source: `UNFUSED` or `MARKED`.
        group_errors: Accumulated errors by group name.
        hidden_groups: Groups whose result stays inside a kernel, or is not reported.
        samples: Number of measured samples.
        accuracy: The accuracy of the marked engine at the judged outputs; None if there is no such engine.
        missing_reason: The reason why there are no errors, "" if there are.
    """

    source: str
    group_errors: Mapping[str, ErrorMetrics] = field(default_factory=dict)
    hidden_groups: tuple[str, ...] = ()
    samples: int = 0
    accuracy: Accuracy | None = None
    missing_reason: str = ""


def profile_shapes_text(
    input_name: str, min_shape: Sequence[int], opt_shape: Sequence[int], max_shape: Sequence[int]
) -> str:
    """Returns the shapes of an input in an optimization profile as a text: ``image 4x3x8x8 (1x3x8x8 to 8x3x8x8)``."""
    min_text, opt_text, max_text = ("x".join(map(str, shape)) for shape in (min_shape, opt_shape, max_shape))
    return f"{escape_hidden_characters(input_name)} {opt_text}" + (
        f" ({min_text} to {max_text})" if min_text != max_text else ""
    )


@dataclass(frozen=True)
class ProfileLatency:
    """The latency of an engine in one of several optimization profiles, at the optimal shapes of the profile.

    Attributes:
        shapes: Minimum, optimal and maximum shape of each dynamic input, by name.
        batch_samples: Number of samples in one execution.
        latency_ms: Median, minimum and maximum of enqueued executions.
        cuda_graph_ms: Median, minimum and maximum of executions that were launched as one CUDA graph each.
        missing_reason: The values that could not be measured, with the reason; "" if all were measured.
    """

    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    batch_samples: int
    latency_ms: tuple[float, float, float] | None = None
    cuda_graph_ms: tuple[float, float, float] | None = None
    missing_reason: str = ""

    @property
    def samples_per_s(self) -> float | None:
        """The throughput in samples per second, by the faster of the two ways to launch an execution; None if not
        measured."""
        latencies_ms = [
            times_ms[0]
            for times_ms in (self.latency_ms, self.cuda_graph_ms)
            if times_ms is not None and times_ms[0] > 0
        ]
        return 1e3 * self.batch_samples / min(latencies_ms) if latencies_ms else None

    @property
    def profile_latency_text(self) -> str:
        """The shapes, throughput and latency of an optimization profile as a text."""
        shapes = ", ".join(profile_shapes_text(name, *ranges) for name, ranges in self.shapes.items())
        parts = [f"{round(rate):,} samples/s"] if (rate := self.samples_per_s) is not None else []
        parts += [milliseconds_text(self.latency_ms[0])] if self.latency_ms is not None else []
        parts += (
            [f"{milliseconds_text(self.cuda_graph_ms[0])} as one CUDA graph"] if self.cuda_graph_ms is not None else []
        )
        return f"{shapes}: {', '.join((*parts, *filter(None, [self.missing_reason])))}"


@dataclass(frozen=True)
class RunResult:
    """The result of a run; a subclass holds further values of runs of its kind.

    Attributes:
        accuracy: The accuracy at the judged outputs; None if the run was not executed.
    """

    accuracy: Accuracy | None


@dataclass(frozen=True)
class EngineResult(RunResult):
    """The result of building a config with TensorRT: the engine's accuracy, latency, layers and build.

    Attributes:
        latency_ms: Median, minimum and maximum of the timed executions, in milliseconds.
        engine_bytes: Size of the engine.
        build_s: Duration of the build in seconds; 0 if the engine came from the cache.
        measurement_note: A note on the measured values.
        device_name: The GPU, "" if there is none.
        device_memory_bytes: Bytes that an execution needs in addition to weights and tensors.
        engine_report: The engine layers, if the backend lists them.
        implementations: The implementation of each group, by group name.
        build_origin: The start of the build: "cold", "timing cache" or "engine cache".
        shape_accuracies: The accuracy at other shapes of the profile ("min", "max"), if requested.
        attempts: The build attempts; the last one built the engine. See `trt_tui.core.engines.fallback_ladder`.
        other_precisions: If the engine was not built as requested: the groups that run in another precision, with that
            precision, as far as the backend reports it.
        simulated_accuracy: If the engine was not built as requested: the simulation of the config that was built
            instead.
        failure_reason: The reason why the build failed, "" if it did not.
        builder_warnings: The warnings of parser and builder; see `trt_tui.core.engines.fallback_ladder`.
        engine_errors: Errors inside the engine at the groups; None if not measured.
        repeated_builds: The results of several builds, of which this engine is the worst; () if it was built once.
        cuda_graph_ms: The same as ``latency_ms`` for executions that were launched as one CUDA graph each.
        profile_latencies: The latency in each profile, if there are several; () if not.
        unequal_outputs: Outputs at which identical samples of one batch differ.
    """

    builder_name: str
    latency_ms: tuple[float, float, float] | None = None
    engine_bytes: int | None = None
    build_s: float | None = None
    measurement_note: str = ""
    device_name: str = ""
    device_memory_bytes: int | None = None
    engine_report: EngineReport | None = None
    implementations: Mapping[str, GroupImplementation] = field(default_factory=dict)
    build_origin: str = ""
    shape_accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    attempts: tuple[BuildAttempt, ...] = ()
    other_precisions: Mapping[str, Precision] = field(default_factory=dict)
    simulated_accuracy: Accuracy | None = None
    failure_reason: str = ""
    engine_errors: EngineErrors | None = None
    repeated_builds: "tuple[EngineResult, ...]" = ()
    unequal_outputs: tuple[str, ...] = ()
    cuda_graph_ms: tuple[float, float, float] | None = None
    builder_warnings: tuple[str, ...] = ()
    profile_latencies: tuple[ProfileLatency, ...] = ()

    @property
    def profile_latency_lines(self) -> tuple[str, ...]:
        return tuple(
            f"profile {index}: {profile.profile_latency_text}" for index, profile in enumerate(self.profile_latencies)
        )

    @property
    def builder_text(self) -> str:
        """The builder and the GPU as a text: ``TensorRT 8.6.1, H200``."""
        return builder_device_text(self.builder_name, self.device_name)

    @property
    def worst_errors(self) -> ErrorMetrics | None:
        """The errors at the worst judged output; None if the engine was not executed."""
        return self.accuracy.worst_errors if self.accuracy is not None else None

    @property
    def different_kernels(self) -> list[str]:
        """The first kernel of each build that differs from the first build; "" if all are equal or unknown."""
        reports = [build.engine_report for build in self.repeated_builds]
        first = next(filter(None, reports), None)
        return [
            find_first_different_kernel(first, report) if first is not None and report is not None else ""
            for report in reports
        ]

    @property
    def is_built_as_requested(self) -> bool:
        """True if the engine was built from the requested config, so that its values are those of that config."""
        return not self.failure_reason and (not self.attempts or self.attempts[-1].has_requested_precisions)

    def select_comparable_simulation(self, requested_accuracy: Accuracy | None) -> Accuracy | None:
        """Returns the simulated accuracy of the config that was built, with which the engine is compared.

        It is ``requested_accuracy`` if the engine was built as requested, and the simulation of the config that was
        built if not.
        """
        return requested_accuracy if self.is_built_as_requested else self.simulated_accuracy


FP32_ENGINE = ResultKind[None, EngineResult]("FP32 engine")
"""The FP32 engine, compared with FP32 in the simulating backend. Low precision does not cause its error."""


@dataclass(frozen=True)
class ExportedRun(RunResult):
    """The execution of a config's exported file by ONNX Runtime, without an engine and without a latency.

    It can refute a simulated result, but never confirms one.

    Attributes:
        executor_name: The program that executed the file, with ``options``: ``ONNX Runtime 1.27.0 CPU``.
        provider: The execution provider, "cpu" or "cuda".
        missing_reason: The reason why the file was not executed, "" if it was.
        options: The options other than the defaults that the file needed to load; "" if it needed none.
    """

    executor_name: str
    provider: str
    missing_reason: str = ""
    options: str = ""

    @property
    def source_name_in_records(self) -> str:
        """The source of the values in JSON records: ``onnxruntime-cpu``."""
        return f"onnxruntime-{self.provider}"


@dataclass(frozen=True)
class ExportedResult:
    """The result of the exported file of a config that a search found, executed by ONNX Runtime on the samples of the
    search.

    Attributes:
        executor_name: The program that executed the file.
        is_met: True if the result meets the tolerances; None if the file was not executed or cannot be judged.
        value_text: The measured value in words; the reason if the file was not executed.
        simulated_text: The simulated value in words.
        samples: The number of samples of the search; 0 if the file was not executed.
    """

    executor_name: str
    is_met: bool | None
    value_text: str
    simulated_text: str = ""
    samples: int = 0

    @property
    def exported_result_text(self) -> str:
        """The result of executing the exported file, as a text without a full stop."""
        if self.is_met is None:
            return f"the exported network was not executed: {self.value_text}"
        value_text = f"{self.value_text} in {self.executor_name}"
        samples_text = f"on the {counted_noun_text(self.samples, 'sample')} of the search"
        if self.is_met:
            return f"the exported network yields {value_text} {samples_text}"
        return f"not met as exported: {value_text} {samples_text} where {SIMULATED_MARK}{self.simulated_text} was simulated"


def failed_build_result(builder_name: str, error: TrtTuiError) -> EngineResult:
    """Returns the result of a build that failed: the reason in place of an engine.

    Args:
        builder_name: The title of the builder.
    """
    attempts = error.attempts if isinstance(error, NoEngineError) else ()
    cause = attempts[0].failure_reason if attempts else error.cause
    return EngineResult(
        None, builder_name, failure_reason=": ".join(filter(None, (error.title, join_lines(cause)))), attempts=attempts
    )


@dataclass
class ConfigResults:
    """All results of one config. New measurements are added to this object.

    Attributes:
        runs: The results of the config's runs. A typed network has one if TensorRT refuses parts of a typed or
            quantized file: the accuracy without these parts.
        group_errors: Errors by group name. ``has_all_group_errors`` is True once they cover all samples.
        shares: Error shares by group name, as far as they are measured. ``has_all_shares`` is True once they are
            final.
        preview: The preview of the config; None if it was not requested.
    """

    runs: dict[RunKind, RunResult] = field(default_factory=dict)
    group_errors: Mapping[str, GroupErrors] = field(default_factory=dict)
    shares: dict[str, ErrorShare] = field(default_factory=dict)
    has_all_group_errors: bool = False
    has_all_shares: bool = False
    preview: Preview | None = None

    def get_accuracy(self, kind: RunKind) -> Accuracy | None:
        """Returns the accuracy of a run; None if it was not measured."""
        return self.runs[kind].accuracy if kind in self.runs else None

    def store_accuracy(self, accuracy: Accuracy | None, kind: RunKind = RunKind.SIMULATED_CONFIG) -> None:
        """Stores the accuracy of a run without further results; None is not stored."""
        if accuracy is not None:
            self.runs[kind] = RunResult(accuracy)

    @property
    def accuracy(self) -> Accuracy | None:
        """The simulated accuracy."""
        return self.get_accuracy(RunKind.SIMULATED_CONFIG)

    @property
    def engine_result(self) -> EngineResult | None:
        """The result of building the config; None if that was not asked for."""
        result = self.runs.get(RunKind.BUILT_ENGINE)
        return result if isinstance(result, EngineResult) else None

    @property
    def exported_run(self) -> ExportedRun | None:
        """The execution of its exported file; None if that was not asked for."""
        result = self.runs.get(RunKind.EXPORTED_FILE)
        return result if isinstance(result, ExportedRun) else None
