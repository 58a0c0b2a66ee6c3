"""The records of a comparison: what `compare --json` writes and the app shows.

A value that was not measured is None here and absent in the file; it is never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trt_tui.core.engines.fallback_ladder import BuildAttempt, NoEngineError, join_lines
from trt_tui.core.engines.group_implementations import GroupImplementation
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.bootstrap import AccuracyIntervals
from trt_tui.core.measure.error_metrics import ErrorMetric, ErrorMetrics
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import (
    SIMULATED_MARK,
    builder_device_text,
    escape_hidden_characters,
    milliseconds_text,
)


@dataclass(frozen=True)
class OutputErrors:
    """Error at one judged output and its worst sample (index among the judged samples, SQNR in dB or None).

    Attributes:
        variation_db: The energy of the reference's deviations from their mean over samples, relative to its energy;
            minus infinity if all samples are equal. None with one sample, and while not all are measured.
    """

    errors: ErrorMetrics
    worst_index: int | None = None
    worst_sqnr_db: float | None = None
    variation_db: float | None = None

    @property
    def sqnr_against_variation_db(self) -> float | None:
        """The SQNR against the part of the reference that varies between samples; None if either is unknown."""
        levels_db = self.errors.sqnr_db, self.variation_db
        return levels_db[0] + levels_db[1] if levels_db[0] is not None and levels_db[1] is not None else None


@dataclass(frozen=True)
class Caveat:
    """A reason why the values of a run may not hold in production.

    Attributes:
        kind: A short name for records: "failed run", "overflow", "may overflow", "unchecked range", "steady output",
            "trivial target", "known gap", "builds differ", "not executed", "not met as exported" or "no engine".
        text: The reason as one sentence without a full stop, for people.
        gap_db: The caveat counts only if the margin to the target is smaller than this, in dB; None if it always
            counts.
        fails_run: True if the run misses every target, whatever its values are.
    """

    kind: str
    text: str
    gap_db: float | None = None
    fails_run: bool = False


@dataclass(frozen=True)
class Accuracy:
    """How a run does at the judged outputs.

    Attributes:
        outputs: By judged output name.
        metric: The user's metric and its parts; the first entry is the headline. Empty without one.
        agreement: Share of samples whose largest class is the reference's, for a classifier without labels.
        samples: Samples measured so far; ``total`` are to be measured.
        judged_error: The judged error that shares are shares of: the sum of Σ(test-ref)²/Σref² over the float outputs.
            If only integers are judged, the sum of the shares that differ.
        intervals: How far the figures may be off because there are few samples; None until all are measured, or with
            too few.
        caveats: Reasons why the values may not hold in production; the target result takes them into account.
        meaningless_accuracies: The accuracy of runs whose outputs mean nothing, by what was done to the reference's
            outputs; see `trt_tui.core.measure.sample_dependence`. A target that one of them meets is trivial.
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

    @property
    def worst_output(self) -> tuple[str, OutputErrors] | None:
        """The float output with the lowest SQNR; one with NaN or Inf comes first."""
        float_outputs = [item for item in self.outputs.items() if item[1].errors.mismatch is None]
        return min(float_outputs, key=lambda item: item[1].errors.comparable_sqnr_db,
                   default=next(iter(self.outputs.items()), None))

    @property
    def worst_errors(self) -> ErrorMetrics | None:
        """The errors of the worst output."""
        return self.worst_output[1].errors if self.worst_output is not None else None

    def find_worst_value(self, metric: ErrorMetric, output_name: str | None = None) -> float | None:
        """The value of a metric at a judged output, the worst of all by default: the one with the worst SQNR need not
        have the worst cosine. None if there are none, or one of them is unknown."""
        values = [entry.errors.value(metric) for name, entry in self.outputs.items()
                  if (name == output_name if output_name is not None else
                      (entry.errors.mismatch is not None) is metric.is_of_integers)]
        known_values = [value for value in values if value is not None]
        if not known_values or len(known_values) < len(values):
            return None
        return min(known_values) if metric.is_higher_better else max(known_values)

    @property
    def nonfinite_count(self) -> int:
        """Count of NaN and Inf over all outputs."""
        return sum(output_errors.errors.nonfinite_count for output_errors in self.outputs.values())

    @property
    def fails_every_target(self) -> bool:
        """True if the run misses every target, whatever its values are."""
        return any(caveat.fails_run for caveat in self.caveats)

    @property
    def headline_metric(self) -> float | None:
        """The metric's first value."""
        return next(iter(self.metric.values()), None)


@dataclass(frozen=True)
class GroupErrors:
    """What was measured at one group in one run.

    Attributes:
        accumulated: The whole network in the run's precisions.
        isolated: The group in the run's precision, every input from the reference.
        precision: What the group ran in.
        ref_max: Largest absolute value of the reference tensor.
        warning: Overflow or underflow in words, "" where there is none.
        fp16_over: How many values of the reference tensor exceed FP16's largest; None where FP16 was not in question.
        fp16_under: How many nonzero values lie below FP16's least magnitude; None where FP16 was not in question.
        fp16_largest: Largest FP32 magnitude that the group rounds, at its last tensor or before; None where FP16 was
            not in question.
        fp16_largest_layer: The layer that computes it.
        fp16_state: A value of `trt_tui.core.measure.fp16_range.Fp16RangeState`; "" where FP16 was not in question.
    """

    precision: Precision
    accumulated: ErrorMetrics | None = None
    isolated: ErrorMetrics | None = None
    ref_max: float | None = None
    warning: str = ""
    fp16_over: int | None = None
    fp16_under: int | None = None
    fp16_largest: float | None = None
    fp16_largest_layer: str = ""
    fp16_state: str = ""


@dataclass(frozen=True)
class ErrorShare:
    """What one group owns of the judged error.

    Attributes:
        fraction: (E(c) - E(c, group in FP32)) / E(c); may be slightly negative. NaN if it is unknown.
        sqnr_if_raised_db: Worst judged SQNR in dB with this group alone raised to FP32 (impact_kept), None if exact or
        bad.
        sqnr_if_reduced_alone_db: Worst judged SQNR in dB with this group alone as in the run, all others FP32; None if
        unmeasured.
        samples: On how many of the judged samples it stands; the other figures too.
        half_width: With 95 % confidence the share on all judged samples is so near; None where it was taken on all of
            them, or on too few to say.
        unknown_reason: Why ``fraction`` says nothing, "" where it does.
    """

    fraction: float
    sqnr_if_raised_db: float | None = None
    sqnr_if_reduced_alone_db: float | None = None
    samples: int = 0
    half_width: float | None = None
    unknown_reason: str = ""


UNFUSED, MARKED = "unfused", "marked"
"""How tensors inside an engine were read: what its kernels hand on to each other as it was built; or of a second engine
that has the groups' results as outputs, which is not the engine as built."""


@dataclass(frozen=True)
class EngineErrors:
    """Errors inside an engine, at the last tensors of the groups, against FP32 of the network.

    Attributes:
        source: `UNFUSED` or `MARKED`.
        group_errors: Accumulated errors by group name.
        hidden_groups: Groups whose result stays inside a kernel, or is not told.
        samples: How many samples they were taken on.
        accuracy: Of a second engine at the judged outputs; None where there is none.
        missing_reason: Why there are no errors, "" where there are.
    """

    source: str
    group_errors: Mapping[str, ErrorMetrics] = field(default_factory=dict)
    hidden_groups: tuple[str, ...] = ()
    samples: int = 0
    accuracy: Accuracy | None = None
    missing_reason: str = ""


def profile_shapes_text(input_name: str, min_shape: Sequence[int], opt_shape: Sequence[int],
                        max_shape: Sequence[int]) -> str:
    """The shapes of an input in a profile: ``image 4x3x8x8 (1x3x8x8 to 8x3x8x8)``."""
    min_text, opt_text, max_text = ("x".join(map(str, shape)) for shape in (min_shape, opt_shape, max_shape))
    return f"{escape_hidden_characters(input_name)} {opt_text}" + (f" ({min_text} to {max_text})"
                                                                   if min_text != max_text else "")


@dataclass(frozen=True)
class ProfileLatency:
    """How fast an engine is in one of several optimization profiles, at its usual shapes.

    Attributes:
        shapes: Least, usual and largest shape by input name, of dynamic inputs.
        batch_samples: How many samples a run takes there.
        latency_ms: Median, minimum and maximum of runs that were enqueued; ``cuda_graph_ms`` as one CUDA graph each.
        missing_reason: What could not be measured and why, "" where all was.
    """

    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    batch_samples: int
    latency_ms: tuple[float, float, float] | None = None
    cuda_graph_ms: tuple[float, float, float] | None = None
    missing_reason: str = ""

    @property
    def samples_per_s(self) -> float | None:
        """By the faster of the two ways to run it."""
        latencies_ms = [
            times_ms[0]
            for times_ms in (self.latency_ms, self.cuda_graph_ms)
            if times_ms is not None and times_ms[0] > 0
        ]
        return 1e3 * self.batch_samples / min(latencies_ms) if latencies_ms else None

    @property
    def profile_latency_text(self) -> str:
        """In words."""
        shapes = ", ".join(profile_shapes_text(name, *ranges) for name, ranges in self.shapes.items())
        parts = [f"{round(rate):,} samples/s"] if (rate := self.samples_per_s) is not None else []
        parts += [milliseconds_text(self.latency_ms[0])] if self.latency_ms is not None else []
        parts += [f"{milliseconds_text(self.cuda_graph_ms[0])} as one CUDA graph"
                  ] if self.cuda_graph_ms is not None else []
        return f"{shapes}: {', '.join((*parts, *filter(None, [self.missing_reason])))}"


@dataclass(frozen=True)
class RepeatedBuild:
    """What one of several builds of the same config came to.

    Attributes:
        worst_output_errors: At its worst judged output.
        latency_ms: Median.
    """

    worst_output_errors: ErrorMetrics | None = None
    latency_ms: float | None = None
    build_s: float | None = None
    engine_bytes: int | None = None


@dataclass(frozen=True)
class EngineResult:
    """What an engine that TensorRT built computes, judged by its own outputs.

    Attributes:
        accuracy: None if it was built but cannot run here.
        latency_ms: Median, minimum and maximum of the timed runs, in milliseconds.
        engine_bytes: Size of the engine.
        build_s: How long the build took, in seconds; 0 where the engine came from the cache.
        measurement_note: What to know about these figures.
        device_name: The GPU, "" if there is none.
        device_memory_bytes: Bytes that a run needs beside weights and tensors.
        engine_report: Its layers, if the backend lists them.
        implementations: What became of each group, by group name.
        build_origin: "cold", "timing cache" or "engine cache": what the build could start from.
        is_quick_build: Built with the lowest effort: neither its latency nor its size is that of production.
        shape_accuracies: Verdicts at other shapes of the profile ("min", "max"), if they were asked for.
        attempts: What was tried; the engine was built on the last of them. See `trt_tui.core.engines.fallback_ladder`.
        other_precisions: If it was not built as asked: the groups that run in another precision, with that precision,
            as far as the backend says.
        simulated_accuracy: If it was not built as asked: the simulation of what was built instead.
        failure_reason: Why it could not be built, "" if it was.
        builder_warnings: What parser and builder warned of, by group name; see `trt_tui.core.engines.builder_warnings`.
        engine_errors: Errors at the groups; None where they were not measured.
        repeated_builds: What each of several builds came to, of which this is the worst; () where it was built once.
        cuda_graph_ms: The same as ``latency_ms`` of runs that were launched as one CUDA graph each.
        profile_latencies: How fast it is in each profile, where it has several; () else.
        unequal_outputs: Outputs at which identical samples of one batch came out different.
    """

    accuracy: Accuracy | None
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
    is_quick_build: bool = False
    shape_accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    attempts: tuple[BuildAttempt, ...] = ()
    other_precisions: Mapping[str, Precision] = field(default_factory=dict)
    simulated_accuracy: Accuracy | None = None
    failure_reason: str = ""
    engine_errors: EngineErrors | None = None
    repeated_builds: tuple[RepeatedBuild, ...] = ()
    unequal_outputs: tuple[str, ...] = ()
    cuda_graph_ms: tuple[float, float, float] | None = None
    builder_warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profile_latencies: tuple[ProfileLatency, ...] = ()

    @property
    def profile_latency_lines(self) -> tuple[str, ...]:
        """How fast it is in each of several profiles, in words."""
        return tuple(
            f"profile {index}: {profile.profile_latency_text}" for index, profile in enumerate(self.profile_latencies))

    @property
    def builder_text(self) -> str:
        """The builder and the GPU: ``TensorRT 8.6.1, H200``."""
        return builder_device_text(self.builder_name, self.device_name)

    @property
    def is_built_as_requested(self) -> bool:
        """Whether it is an engine of the config that was asked for, so that its figures are figures of that config."""
        return not self.failure_reason and (not self.attempts or self.attempts[-1].has_requested_precisions)

    def select_comparable_simulation(self, requested_accuracy: Accuracy | None) -> Accuracy | None:
        """The simulation to compare it with: of what was built instead if it was not built as asked, else
        ``requested_accuracy``."""
        return requested_accuracy if self.is_built_as_requested else self.simulated_accuracy


@dataclass(frozen=True)
class ExportedRun:
    """The execution of a config's exported file by ONNX Runtime, which builds nothing: it is neither fast nor slow.

    It is of the config, but of no engine. It can refute a simulated result and never confirms one.

    Attributes:
        executor_name: The program that executed it: ``ONNX Runtime 1.27.0 CPU``.
        provider: The execution provider, "cpu" or "cuda".
        accuracy: At the network's own outputs; None if the file was not executed.
        missing_reason: The reason why it was not executed, "" if it was.
    """

    executor_name: str
    provider: str
    accuracy: Accuracy | None = None
    missing_reason: str = ""

    @property
    def source_name_in_records(self) -> str:
        """The source of its values in records: ``onnxruntime-cpu``."""
        return f"onnxruntime-{self.provider}"


@dataclass(frozen=True)
class ExportedResult:
    """The exported file of the config that was found, as ONNX Runtime executes it on the samples of the search.

    Attributes:
        executor_name: The program that executed it.
        is_met: Whether it meets the tolerances; None if it was not executed or cannot be judged.
        value_text: What it yields, in words; the reason if it was not executed.
        simulated_text: What was simulated, in words.
    """

    executor_name: str
    is_met: bool | None
    value_text: str
    simulated_text: str = ""

    @property
    def exported_result_text(self) -> str:
        """In words, without a full stop."""
        if self.is_met is None:
            return f"the exported network was not executed: {self.value_text}"
        if self.is_met:
            return f"the exported network yields {self.value_text} in {self.executor_name}"
        return (
            f"not met as exported: "
            f"{self.value_text} in {self.executor_name} where {SIMULATED_MARK}{self.simulated_text} was simulated"
        )


def failed_build_result(builder_name: str, error: TrtTuiError) -> EngineResult:
    """The result of a build that failed: the reason in place of an engine.

    Args:
        builder_name: Its title.
    """
    attempts = error.attempts if isinstance(error, NoEngineError) else ()
    cause = attempts[0].failure_reason if attempts else error.cause
    return EngineResult(None, builder_name, failure_reason=": ".join(filter(None, (error.title, join_lines(cause)))),
                        attempts=attempts)


@dataclass
class ConfigResults:
    """What was measured of one config; it grows as figures come in.

    Attributes:
        accuracy: Simulated; None if nothing was measured yet.
        exported_accuracy: For a file's own network of which TensorRT refuses something, of its typed network without
        that.
        group_errors: Errors by group name; ``has_all_group_errors`` once they are on all samples.
        shares: By group name; of those measured so far.
        engine_result: The result of building the config.
        exported_run: The execution of its exported file; None if that was not asked for.
        cumulative: Verdicts with the first 1, 2, ... groups of ``raised_order``, the worst first, raised to FP32.
        preview: What the builder would make of the config; None while it was not asked.
    """

    accuracy: Accuracy | None = None
    group_errors: Mapping[str, GroupErrors] = field(default_factory=dict)
    shares: dict[str, ErrorShare] = field(default_factory=dict)
    engine_result: EngineResult | None = None
    exported_run: ExportedRun | None = None
    has_all_group_errors: bool = False
    raised_order: tuple[str, ...] = ()
    cumulative: tuple[Accuracy, ...] = ()
    exported_accuracy: Accuracy | None = None
    preview: Preview | None = None
