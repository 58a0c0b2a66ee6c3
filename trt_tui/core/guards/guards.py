"""The guards, the most serious first, with the facts that they check and the functions that run them.

Each guard is a function of `GuardFacts`. Its docstring states the rule, the threshold and the source of the threshold.
Facts are plain values; each is None until it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from trt_tui.core.calibration.cache import CalibrationCacheHeader
from trt_tui.core.calibration.calibration import RANGE_METHODS
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.measure.target import Target, judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import LayerKind, NetworkOutline
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text, number_text, percent_text

T = TypeVar("T")

MEASURED_SOURCE, CACHE_SOURCE, CONFIG_SOURCE = "measured", "cache", "config"
"""The sources of ranges."""


@dataclass(frozen=True)
class InputStats:
    """Statistics of one network input: float64 arrays with a row for each sample and a column for each channel.

    If the input has no short axis that can be a channel axis, the whole sample is one channel.

    Attributes:
        mean: Mean of the values.
        std: Standard deviation of the values.
        minimum: Smallest value.
        maximum: Largest value.
    """

    mean: np.ndarray
    std: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    @property
    def sample_count(self) -> int:
        return len(self.mean)

    @property
    def channel_count(self) -> int:
        return int(self.mean.shape[1])


@dataclass(frozen=True)
class RangeFacts:
    """The ranges in use, their origin, and the result of their comparison with samples.

    Attributes:
        source: `MEASURED_SOURCE` for ranges measured on the calibration data, `CACHE_SOURCE` or `CONFIG_SOURCE` for
            ranges from a file.
        source_name: The name of the file or of the data.
        method: The range method; "" if unknown.
        calibration_samples: Number of calibration samples; 0 if unknown.
        cache_header: The header of a calibration cache; None without a cache.
        fallback_method: The method of measured ranges that the cache lacks; "" if it lacks none.
        requested_method: The method that the command line or the config requests; "" if neither requests one.
        builder_release: The release of the installed TensorRT; "" if there is none that works and reads caches.
        checked_samples: Number of samples used to find ``mismatches``; 0 if the ranges were not compared.
        compared_tensors: The tensors that were compared.
        mismatches: The ranges that contradict the samples, by tensor: the amax in use, and the expected amax. A range
            contradicts the samples if it differs from all values that a range method could choose by a factor of 2.
    """

    source: str
    source_name: str
    method: str = ""
    calibration_samples: int = 0
    cache_header: CalibrationCacheHeader | None = None
    fallback_method: str = ""
    requested_method: str = ""
    builder_release: str = ""
    checked_samples: int = 0
    compared_tensors: frozenset[str] = frozenset()
    mismatches: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def restrict_comparison(self, tensors: Set[str]) -> RangeFacts:
        """Returns these facts with the comparison of some tensors only."""
        mismatches = {tensor: pair for tensor, pair in self.mismatches.items() if tensor in tensors}
        return replace(self, compared_tensors=self.compared_tensors & tensors, mismatches=mismatches)


@dataclass(frozen=True)
class LabelClassFacts:
    """The numbers of judged and calibration samples with each class, according to one array of labels.

    Attributes:
        label_array: The name of the array.
        judged_counts: Number of judged samples by class. ``judged_samples`` is the total number.
        calibration_counts: Number of calibration samples by class.
    """

    label_array: str
    judged_counts: Mapping[int, int]
    judged_samples: int
    calibration_counts: Mapping[int, int]
    calibration_samples: int


@dataclass(frozen=True)
class UnfitLabels:
    """An array of labels that does not fit the classes of an output.

    Attributes:
        label_array: The name of the array.
        output: The output with the classes. ``class_count`` is their number.
        outside: The sorted labels that are not classes of the output.
        has_class_0: True if the label 0 occurs.
        one_hot_size: Columns of one-hot labels; None for class numbers.
    """

    label_array: str
    output: str
    class_count: int
    outside: tuple[int, ...] = ()
    has_class_0: bool = True
    one_hot_size: int | None = None


@dataclass(frozen=True)
class CalibrationConvergencePoint:
    """The SQNR of the worst output in dB with ranges from a given number of calibration samples."""

    samples: int
    sqnr_db: float


@dataclass(frozen=True)
class ClippedShare:
    """The share of a tensor's values beyond its range, in the judged samples and in the calibration samples."""

    judged_share: float
    calibration_share: float


@dataclass(frozen=True)
class FloatWorkShare:
    """The share of a config's quantizable work that is executed in floating point.

    Attributes:
        float_share: The share, from 0 to 1.
        is_timed: True for a share of the time of the layers in an INT8 engine; False for a share of the
            multiply-accumulate operations.
        float_groups: Number of quantizable groups in floating point. ``total_groups`` is the number of all quantizable
            groups.
    """

    float_share: float
    is_timed: bool
    float_groups: int
    total_groups: int


@dataclass(frozen=True)
class GuardFacts:
    """The facts about samples, ranges and results that guards check.

    Attributes:
        has_random_inputs: True if all inputs are seeded random numbers.
        range_facts: The ranges in use.
        input_stats: Statistics of the calibration samples and of the judged samples, by network input.
        judges_calibration_samples: True if the calibration samples are the judged ones.
        equal_sample_count: Number of judged samples if all are equal, 0 if not. None if not checked.
        byte_inputs: Number of compared samples of each float input that holds byte images and that the network does not
            scale; None if not checked.
        batch_sqnr_db: The SQNR of FP32 of single samples against the batch in use, by output; None if not measured.
            ``compared_batch`` is that batch as text, and ``no_batch_reason`` the reason why there is no SQNR.
        unfit_labels: Labels that do not fit the classes of the output; None if there are no labels or classes.
        class_facts: The classes in each array of labels; None if not checked.
        no_classes_reason: The reason why there are no ``class_facts``.
        convergence: The results with a quarter, a half and all of the calibration samples. ``no_convergence_reason`` is
            the reason why there are none.
        clipped: The shares of clipped values by tensor; None if not measured.
        set_ranges: The tensors whose range the config of the checked run sets.
        framework_errors: The errors of FP32 against the framework's outputs, by judged output.
        run_name: The name of the checked run, which is its config as text.
        accuracy: The accuracy of the checked run.
        fp16_accuracy: The accuracy of a run with all layers in FP16.
        fp32_accuracy: The accuracy of FP32 on all samples against another reference; None if FP32 is the reference.
        reference_name: The name of the other reference.
        float_type: The float type of the checked run outside quantized layers.
        is_quantized: True if the default precision of the checked run is a quantized type.
        quantized_type: The name of this quantized type, such as ``INT8``.
        targets: The targets of the checked run.
        rejected_target_reason: The reason why a stored target is not in use; "" if it is, None if none is stored.
        float_work: The share of work that the checked run does in floating point; None if it is not quantized.
    """

    has_random_inputs: bool = False
    range_facts: RangeFacts | None = None
    input_stats: Mapping[str, tuple[InputStats, InputStats]] | None = None
    judges_calibration_samples: bool = False
    equal_sample_count: int | None = None
    byte_inputs: Mapping[str, int] | None = None
    batch_sqnr_db: Mapping[str, float] | None = None
    compared_batch: str = ""
    no_batch_reason: str = ""
    unfit_labels: tuple[UnfitLabels, ...] | None = None
    class_facts: tuple[LabelClassFacts, ...] | None = None
    no_classes_reason: str = ""
    convergence: tuple[CalibrationConvergencePoint, ...] = ()
    no_convergence_reason: str = ""
    clipped: Mapping[str, ClippedShare] | None = None
    set_ranges: frozenset[str] = frozenset()
    framework_errors: Mapping[str, ErrorMetrics] | None = None
    run_name: str = ""
    accuracy: Accuracy | None = None
    fp16_accuracy: Accuracy | None = None
    fp32_accuracy: Accuracy | None = None
    reference_name: str = ""
    float_type: str = ""
    is_quantized: bool = False
    quantized_type: str = "INT8"
    targets: tuple[Target, ...] = ()
    rejected_target_reason: str | None = None
    float_work: FloatWorkShare | None = None

    def sqnr_without_fp32_error(self, sqnr_db: float, output_name: str = "") -> float:
        """Estimates the SQNR against the network in FP32 from an SQNR against another reference, in dB.

        The error of FP32 on the same samples is subtracted. The result is infinite if FP32 has all of the error.

        Args:
            output_name: The judged output; "" for the worst one.
        """
        outputs = self.fp32_accuracy.accuracy_on_compared_samples.outputs if self.fp32_accuracy is not None else {}
        fp32_ratios = [
            10 ** (-output.errors.sqnr_db / 10)
            for name, output in outputs.items()
            if output.errors.sqnr_db is not None and output_name in ("", name)
        ]
        ratio = 10 ** (-sqnr_db / 10) - max(fp32_ratios, default=0.0)
        return -10 * math.log10(ratio) if ratio > 0 else math.inf

    def merge_newer_facts(self, newer_facts: GuardFacts) -> GuardFacts:
        """Returns a copy of these facts in which all facts of ``newer_facts`` replace older ones."""
        defaults = vars(_NO_FACTS)
        return replace(
            self,
            **{
                name: value
                for name, value in vars(newer_facts).items()
                if value is not defaults[name] and value != defaults[name]
            },
        )


_NO_FACTS = GuardFacts()


@dataclass(frozen=True)
class GuardWarning:
    """A warning that measured results can mislead.

    Attributes:
        guard_name: The name of the guard.
        summary: The problem in one line.
        reason: The consequence of the problem, with the measured values, as a sentence.
        next_step: The next step for the user, as a sentence.
    """

    guard_name: str
    summary: str
    reason: str
    next_step: str

    @property
    def warning_line(self) -> str:
        return f"{self.summary}: {self.reason}. {self.next_step}"


def warning_record(warning: GuardWarning) -> dict[str, str]:
    return {"guard": warning.guard_name, "what": warning.summary, "why": warning.reason, "next": warning.next_step}


def warning_lines(warning: GuardWarning) -> list[str]:
    """Returns a warning as lines of text for a report."""
    return [f"{warning.guard_name}: {warning.summary}", f"  Why: {warning.reason}", f"  Next: {warning.next_step}"]


class MissingFactsError(Exception):
    """The error for facts that a guard needs but that were not measured. Its text is the reason."""


def require_fact(fact: T | None, missing_reason: str) -> T:
    """Returns a fact that a guard needs. Raises `MissingFactsError` if the fact was not measured or does not hold.

    Raises:
        MissingFactsError: The fact is None, or the condition does not hold.
    """
    if fact is None or fact is False:
        raise MissingFactsError(missing_reason)
    return fact


Alarm = tuple[str, str, str]
"""The summary, the reason and the next step of a warning; see `GuardWarning`."""


@dataclass(frozen=True)
class Guard:
    """A check whether measured results can mislead.

    Attributes:
        name: The name in files and in `preflight`.
        description: The checked property in a few words.
        find_alarms: Yields the warnings for some facts, or raises `MissingFactsError`.
    """

    name: str
    description: str
    find_alarms: Callable[[GuardFacts], Iterator[Alarm]]


@dataclass(frozen=True)
class GuardResult:
    """The warnings of one guard, or the reason why it could not decide.

    Attributes:
        missing_facts_reason: The reason why the guard could not decide; "" if it did.
    """

    guard: Guard
    alarms: tuple[GuardWarning, ...]
    missing_facts_reason: str = ""


MIN_FRAMEWORK_SQNR_DB = 60.0


def fp32_miss_text(guard_facts: GuardFacts) -> str:
    """Returns a line with the targets that FP32 misses when it is compared with another reference; "" if it misses
    none."""
    accuracy = guard_facts.fp32_accuracy
    missed = [target for target in guard_facts.targets if accuracy is not None and target.is_met_by(accuracy) is False]
    if accuracy is None or not missed:
        return ""
    reference_text = escape_hidden_characters(guard_facts.reference_name)
    return f"FP32 itself misses the target against {reference_text}: " + ", ".join(
        target.measured_value_text(accuracy) for target in missed
    )


def find_framework_mismatches(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if FP32 outputs of the network differ from those of the reference.

    Rule: it warns if FP32 misses the target, or if the SQNR of an output against outputs of a framework is below 60 dB.

    Source: two FP32 runtimes agree to at least 100 dB, even if only one fuses layers. A framework that multiplies in
    TF32 or FP16 agrees to 50 to 60 dB. Below that, the network computes something else, or the inputs were prepared
    differently. No change of precisions corrects this.
    """
    require_fact(facts.framework_errors or facts.fp32_accuracy or None, "FP32 is the reference")
    if summary := fp32_miss_text(facts):
        yield (
            summary,
            "no precision of a layer corrects that: both compute something else, or their inputs differ",
            "Compare the weights, the exports and the preprocessing of both sides before any layer.",
        )
        return
    for name, errors in (facts.framework_errors or {}).items():
        bad = (
            errors.nonfinite_count
            or not errors.exact
            and (errors.sqnr_db is None or errors.sqnr_db < MIN_FRAMEWORK_SQNR_DB)
        )
        if bad and errors.mismatch is None:
            yield (
                f"FP32 differs from the framework: {errors.sqnr_text('')} dB at {escape_hidden_characters(name)}",
                "two FP32 runtimes agree to 100 dB and more, so this is not a precision problem",
                "Check the export and the preprocessing of both sides before any layer.",
            )


def find_equal_samples(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the judged samples are copies of one sample.

    Rule: it warns if there are at least two samples, and every input is equal in all compared samples, up to 64.

    Source: with ones instead of images, INT8 of the bundled network passes, and every sample repeats the result of the
    first. A single input that never changes, such as a mask, is common and causes no warning.
    """
    require_fact(not facts.has_random_inputs, "random inputs")
    equal_count = require_fact(facts.equal_sample_count, "the samples were not compared")
    if equal_count:
        yield (
            f"all {counted_noun_text(equal_count, 'judged sample')} are the same",
            "ranges and errors of a single input say nothing about other inputs, and a PASS on it proves nothing",
            "Give samples that differ from each other, as production feeds them.",
        )


MIN_SPREAD_RATIO = 2.0
MIN_MEAN_SHIFT = 0.5
MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_FEW, FEW_SAMPLES = 5.0, 8.0, 8
_TINY = 1e-12


def find_input_mismatches(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if calibration inputs differ from the judged inputs in scale, mean or channel order.

    Rules, for each float or 8-bit input, over means, standard deviations and largest magnitudes of single samples:

    - Spread or reach: the standard deviations, or the largest magnitudes, differ by a factor of 2 in the geometric
      mean. If the factor is near 255, the warning says so, because a missing division by 255 causes it.
    - Mean: the mean of a channel differs by at least half of its standard deviation.
    - Order: the means of three channels, each minus the mean of the sample, agree only in reversed order (RGB read as
      BGR).
    - One of the two inputs has a single value everywhere, and the other has several values.

    A difference counts if it is at least 5 standard errors of the difference of two means; 8 with fewer than 8 samples.

    Source: TensorRT's calibrators accept any input without a warning. With inputs times 255, the F1 of the bundled
    network falls to 8.5. Samples of the same kind differ by chance according to Student's t. From 12 samples on, 5
    standard errors have a probability below 0.01 %.
    """
    require_fact(not facts.has_random_inputs, "random inputs")
    require_fact(not facts.judges_calibration_samples, "the same samples calibrate and are judged")
    require_fact(facts.range_facts, "no layer needs a range")
    input_stats = require_fact(facts.input_stats or None, "no input of floats or bytes")
    for name, (calibration_stats, judged_stats) in input_stats.items():
        if (difference := _describe_input_difference(calibration_stats, judged_stats)) is not None:
            quantity, explanation = difference
            yield (
                f"calibration inputs differ from judged inputs: {quantity} of {escape_hidden_characters(name)}",
                f"{explanation} (calibration {_input_stats_text(calibration_stats)}; judged "
                f"{_input_stats_text(judged_stats)}): one of the two does not match production",
                "Prepare both with the same code.",
            )


def _input_stats_text(input_stats: InputStats) -> str:
    means = ", ".join(number_text(float(value) + 0.0) for value in input_stats.mean.mean(0)[:4])
    return (
        f"{number_text(float(input_stats.minimum.min()) + 0.0)} to "
        f"{number_text(float(input_stats.maximum.max()))}, mean {means}"
    )


def _describe_input_difference(calibration_stats: InputStats, judged_stats: InputStats) -> tuple[str, str] | None:
    """Returns the quantity in which two sets of inputs differ, with an explanation; None if they do not differ."""
    varied = [bool(stats.maximum.max() > stats.minimum.min()) for stats in (calibration_stats, judged_stats)]
    if not all(varied):
        return None if not any(varied) else ("spread", "one is constant, the other is not")
    for quantity, title, compute_logs in (
        ("spread", "std", _compute_log_std_by_sample),
        ("reach", "largest magnitude", _compute_log_amax_by_sample),
    ):
        logs = [compute_logs(stats) for stats in (calibration_stats, judged_stats)]
        differences = _compare_column_means(*logs)
        if differences is not None and abs(differences[0][0]) >= math.log(MIN_SPREAD_RATIO) and differences[1].any():
            factor = math.exp(abs(differences[0][0]))
            side = "larger" if differences[0][0] > 0 else "smaller"
            by_255 = ", as where one is divided by 255 and the other is not" if 200 <= factor <= 325 else ""
            levels = " and ".join(number_text(math.exp(float(values.mean()))) for values in logs)
            return (
                quantity,
                f"the calibration inputs are {number_text(factor)} times {side}{by_255}; the {title} of their samples "
                f"and of judged ones is {levels} in the geometric mean",
            )
    if calibration_stats.channel_count != judged_stats.channel_count:
        return None
    if _has_reversed_channels(calibration_stats, judged_stats):
        return "channel order", "the means of their channels fit when they are reversed, as of RGB read as BGR"
    differences = _compare_column_means(calibration_stats.mean, judged_stats.mean)
    if differences is None:
        return None
    both = np.concatenate([calibration_stats.mean, judged_stats.mean])
    std = (
        np.sqrt(np.mean(np.square(np.concatenate([calibration_stats.std, judged_stats.std])), 0) + both.var(0)) + _TINY
    )
    channels = [
        channel
        for channel in np.flatnonzero(differences[1])
        if abs(differences[0][channel]) >= MIN_MEAN_SHIFT * std[channel]
    ]
    if not channels:
        return None
    worst = max(channels, key=lambda channel: float(abs(differences[0][channel]) / std[channel]))
    channel_text = f"of channel {worst} " if calibration_stats.channel_count > 1 else ""
    return (
        "mean",
        f"the mean "
        f"{channel_text}is "
        f"{number_text(float(differences[0][worst]))} off, of a std of {number_text(float(std[worst]))}",
    )


def _compute_log_std_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithm of each sample's standard deviation over all channels, ``(samples, 1)``.

    Samples whose values are all equal are left out.
    """
    centre = input_stats.mean.mean(1, keepdims=True)
    variance = np.mean(np.square(input_stats.std) + np.square(input_stats.mean - centre), 1)
    logs: np.ndarray = 0.5 * np.log(variance[variance > _TINY])
    return logs[:, None]


def _compute_log_amax_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithm of each sample's largest magnitude, ``(samples, 1)``. Samples of zeros are left out."""
    reach = np.maximum(np.abs(input_stats.minimum), np.abs(input_stats.maximum)).max(1)
    logs: np.ndarray = np.log(reach[reach > _TINY])
    return logs[:, None]


def _compare_column_means(first_array: np.ndarray, second_array: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the difference of each column mean between two arrays, and True where chance does not explain the
    difference.

    Returns None if there are too few rows.
    """
    count = len(first_array) + len(second_array)
    if not len(first_array) or not len(second_array) or count < 3:
        return None
    spread = sum(np.square(rows - rows.mean(0)).sum(0) for rows in (first_array, second_array)) / (count - 2)
    difference = first_array.mean(0) - second_array.mean(0)
    errors = np.sqrt(spread * (1 / len(first_array) + 1 / len(second_array))) + _TINY
    return difference, np.abs(difference) / errors > (
        MIN_STANDARD_ERRORS if count >= FEW_SAMPLES else MIN_STANDARD_ERRORS_FEW
    )


def _has_reversed_channels(calibration_stats: InputStats, judged_stats: InputStats) -> bool:
    if calibration_stats.channel_count != 3:
        return False
    calibration_offsets, judged_offsets = (
        stats.mean - stats.mean.mean(1, keepdims=True) for stats in (calibration_stats, judged_stats)
    )
    direct, reversed_order = (
        _compare_column_means(calibration_offsets, judged_offsets),
        _compare_column_means(calibration_offsets[:, ::-1], judged_offsets),
    )
    return bool(
        direct is not None
        and reversed_order is not None
        and direct[1].any()
        and not reversed_order[1].any()
        and np.abs(reversed_order[0]).max() < 0.5 * np.abs(direct[0]).max()
    )


_SCALING_OPERATORS = frozenset(
    (
        "Add",
        "BatchNormalization",
        "Div",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "Mul",
        "QuantizeLinear",
        "RMSNormalization",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Sub",
    )
)
"""Operators by which a network brings its input into another range, or begins a decomposed normalisation."""


def find_scaled_inputs(network: NetworkOutline) -> frozenset[str]:
    """Finds the inputs that the network itself scales, shifts or normalises before any other computation."""
    unscaled_inputs: dict[str, set[str]] = {info.name: {info.name} for info in network.inputs}
    scaled: set[str] = set()
    for layer in network.layers:
        read_inputs = set[str]().union(*(unscaled_inputs.get(name, ()) for name in layer.inputs))
        if layer.op_type in _SCALING_OPERATORS:
            scaled |= read_inputs
        elif layer.kind in (LayerKind.COPY, LayerKind.CAST) or layer.op_type == "Pad":
            unscaled_inputs |= dict.fromkeys(layer.outputs, read_inputs)
    return frozenset(scaled)


def find_byte_images(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if a float input holds byte images, and asks whether production feeds bytes too.

    Rule: a float input holds byte images if all compared samples have two axes of at least 8 values, and all their
    values are whole numbers from 0 to 255, with one above 127. The guard asks unless the first operators behind the
    input scale or normalise it.

    Source: errors are relative, so they look normal if calibration data and judged data are both 255 times too large.
    With the images of the bundled network times 255, as whole numbers, INT8 has 22 dB and meets 20 dB; with the images
    themselves it has 11 dB. A divided or normalised image does not consist of whole numbers. Some networks take bytes,
    so the warning is a question. Token ids have an integer type.
    """
    require_fact(not facts.has_random_inputs, "random inputs")
    byte_inputs = require_fact(facts.byte_inputs, "the inputs were not checked")
    for name, sample_count in byte_inputs.items():
        yield (
            f"{escape_hidden_characters(name)} holds bytes: does production divide them by 255?",
            f"all values of {counted_noun_text(sample_count, 'sample')} are whole numbers from 0 to 255, and the "
            "network does not scale this input; if it expects 0 to 1, all ranges and errors are of other values",
            "Prepare the data as production does. If production feeds bytes too, the data are right.",
        )


def find_unfit_label_warnings(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if labels are not classes of the output.

    Rule: it checks integer labels of a classifier, or of each pixel if the output has classes in its second axis. The
    guard warns about a label that is negative or at least the number of classes. -1 and -100 are not labels, and
    neither is 255 beside small numbers. An array counts as class labels if at least half of its labels fit and labels
    repeat; other arrays hold numbers of samples or quantities. One-hot rows must have as many columns as there are
    classes.

    Source: PyTorch ignores the label -100, and Cityscapes and Pascal VOC mark ignored pixels with 255. A metric counts
    a label that no output can have as an error of every run, so that the baseline is too low and hides losses. Labels
    that begin at 1 make nearly every sample wrong.
    """
    unfit_labels = require_fact(facts.unfit_labels, "no labels, or no output with classes")
    for labels in unfit_labels:
        array, output = escape_hidden_characters(labels.label_array), escape_hidden_characters(labels.output)
        summary = f"labels in {array} do not fit the {labels.class_count} classes of {output}"
        if labels.one_hot_size is not None:
            yield (
                summary,
                f"a one-hot row there has {labels.one_hot_size} columns",
                "Give labels of the classes that the network was trained on.",
            )
            continue
        starts_at_one = labels.outside == (labels.class_count,) and not labels.has_class_0
        yield (
            summary,
            f"{name_list_text(list(map(str, labels.outside)), 5)} occur there, and classes are 0 to "
            f"{labels.class_count - 1}" + ("; class 0 never occurs, as if labels begin at 1" * starts_at_one),
            "Subtract 1 from the labels."
            if starts_at_one
            else "Correct the labels, or leave these samples out: no run can be right about them.",
        )


MIN_BATCH_SQNR_DB = 80.0


def find_batch_dependence(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the outputs of a sample depend on the other samples of its batch.

    Rule: FP32 outputs of up to 4 samples are computed in the batch in use, and again alone (in a batch of copies if the
    network has a fixed batch). The guard warns if the SQNR of an output between the two is below 80 dB.

    Source: another batch only changes the order of sums in FP32, which leaves 134 dB and more in the networks of the
    tests (residual network, U-Net, BERT, ViT). If a network subtracts the mean of the batch from its outputs, 0 dB are
    left. Its accuracy at one batch size says nothing about other batch sizes. The copies that fill a fixed batch change
    its results too.
    """
    sqnrs_db = require_fact(facts.batch_sqnr_db, facts.no_batch_reason or "it was not measured")
    for name, sqnr_db in sqnrs_db.items():
        if sqnr_db < MIN_BATCH_SQNR_DB:
            difference = f"has an SQNR of {sqnr_db:.1f} dB" if math.isfinite(sqnr_db) else "is not finite"
            yield (
                f"{escape_hidden_characters(name)} depends on the other samples of the batch",
                f"FP32 of a sample alone {difference} against FP32 of the same sample in a batch of "
                f"{facts.compared_batch}; rounding alone leaves over {MIN_BATCH_SQNR_DB:.0f} dB",
                "Measure at the batch of production (--batch), or export the network in inference mode.",
            )


def find_missing_classes(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if classes of the judged samples are missing from the calibration samples.

    Rule: it checks each array of integer labels in which a class occurs in at least two judged samples on average.
    Negative numbers such as -1, and 255 beside small numbers, are not classes. The guard warns about missing classes if
    there are at least two calibration samples per class. With fewer samples, the limit is the number of classes that a
    random draw of that many samples could miss. It is the sum of (1 - share)^n over the classes, plus two of its
    standard deviations.

    Source: a property of only one class, such as a bright texture or a rare token, affects no range if no calibration
    sample has the class. The draw is binomial. With a thousand classes and 64 samples most classes are missing, and
    that alone means nothing.
    """
    require_fact(not facts.no_classes_reason, facts.no_classes_reason)
    all_class_facts = require_fact(facts.class_facts or None, "no labels that name classes")
    require_fact(facts.range_facts, "no layer needs a range")
    for class_facts in all_class_facts:
        missing = sorted(class_facts.judged_counts.keys() - class_facts.calibration_counts.keys())
        if missing and (
            2 * len(class_facts.judged_counts) <= class_facts.calibration_samples
            or len(missing) > _estimate_classes_missed_by_chance(class_facts)
        ):
            yield (
                f"{len(missing)} of {len(class_facts.judged_counts)} classes in "
                f"{escape_hidden_characters(class_facts.label_array)} have no calibration sample",
                f"{counted_noun_text(class_facts.calibration_samples, 'sample')} calibrate, none of class "
                f"{name_list_text([str(label) for label in missing])}: values that occur only in these classes are "
                "not in the ranges",
                "Give --calib-data with every class.",
            )


def _estimate_classes_missed_by_chance(class_facts: LabelClassFacts) -> float:
    """Returns the number of classes that a random choice of the calibration samples could miss."""
    missed = [
        (1 - min(1.0, count / class_facts.judged_samples)) ** class_facts.calibration_samples
        for count in class_facts.judged_counts.values()
    ]
    return sum(missed) + 2 * math.sqrt(sum(share * (1 - share) for share in missed))


_RANGE_REMOVALS = {
    MEASURED_SOURCE: "",
    CACHE_SOURCE: ", and leave out --calib-cache",
    CONFIG_SOURCE: ", and take `calibration` out of the config",
}
"""What leaves ranges out, by their source. Ranges of a file are in use as long as the file contains them."""


def _recalibration_text(ranges: RangeFacts, samples_text: str) -> str:
    return f"Calibrate on {samples_text} with --calib-data{_RANGE_REMOVALS[ranges.source]}."


MAX_RANGE_RATIO = 2.0
MIN_SINGLE_RANGE_RATIO = 8.0
MAX_MISMATCHED_SHARE = 0.1


def is_range_mismatched(amax: float, min_expected_amax: float, max_expected_amax: float) -> bool:
    """Returns True if an amax differs from an expected interval by more than the factor `MAX_RANGE_RATIO`.

    All values are in the units of the tensor.
    """
    return amax > MAX_RANGE_RATIO * max_expected_amax or amax < min_expected_amax / MAX_RANGE_RATIO


def _amax_ratio(amax_pair: tuple[float, float]) -> float:
    low, high = sorted(amax_pair)
    return high / low if low > 0 else math.inf


def find_exceeded_ranges(facts: GuardFacts) -> dict[str, float]:
    """Returns the tensors whose values far exceed their range, with the ratio of both; {} if the ranges are not stale."""
    ranges = facts.range_facts
    if ranges is None or not ranges.checked_samples or not any(find_stale_ranges(facts)):
        return {}
    return {
        tensor: expected_amax / amax
        for tensor, (amax, expected_amax) in ranges.mismatches.items()
        if expected_amax > amax
    }


def find_stale_ranges(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the ranges of a cache or config contradict the values in the samples.

    Rule: a range is wrong if it is more than twice the largest magnitude in up to 32 samples. It is also wrong if it is
    less than half of the smallest amax that a calibration method would choose from them. Only ranges that a quantized
    layer reads count. Min-max chooses the largest
    magnitude. Percentile, entropy and MSE can choose less, which counts only for a cache made by these methods. The
    guard warns if more than one range in ten is wrong, or a single one by a factor of 8.

    Source: a factor of 2 is one of the 8 bits. Ranges of one network from different samples of the same kind differ by
    less. Those of the bundled network differ by at most 1.25 between 16 and 48 samples, and by 1.43 between 8 and 48.
    Single tensors with outliers can differ by more, so one tensor alone does not count until it loses 3 bits.
    """
    ranges = require_fact(facts.range_facts, "no layer needs a range")
    require_fact(
        bool(ranges.checked_samples),
        "the ranges were measured on these samples" if ranges.source == MEASURED_SOURCE else "no samples",
    )
    mismatches = ranges.mismatches
    if not mismatches:
        return
    worst = max(mismatches, key=lambda tensor: _amax_ratio(mismatches[tensor]))
    if (
        len(mismatches) <= MAX_MISMATCHED_SHARE * len(ranges.compared_tensors)
        and _amax_ratio(mismatches[worst]) < MIN_SINGLE_RANGE_RATIO
    ):
        return
    amax, expected_amax = mismatches[worst]
    yield (
        f"{escape_hidden_characters(ranges.source_name)}: {len(mismatches)} of "
        f"{counted_noun_text(len(ranges.compared_tensors), 'range')} wrong by a factor of 2 or more",
        f"the values of {counted_noun_text(ranges.checked_samples, 'sample')} contradict them: "
        f"{escape_hidden_characters(worst)} has {number_text(amax)}, and the samples need {number_text(expected_amax)}, "
        "as after another training or preprocessing",
        _recalibration_text(ranges, "current samples"),
    )


OLDEST_CACHE_RELEASE, NEWEST_CACHE_RELEASE = (8, 6), (10, 99)
"""Oldest and newest release whose calibration caches are supported."""


def find_foreign_cache(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if a calibration cache is for another TensorRT release or range method than the ones in use.

    Rule: the first line of a cache, ``TRT-8601-EntropyCalibration2``, names both. The guard warns in these cases:

    - A TensorRT that reads caches works on this machine and is of another release.
    - The cache is older than TensorRT 8.6, or names a release that writes no caches (11 and later).
    - The method differs from ``--calib-method`` or from the config.
    - The method differs from that of the ranges that the cache lacks and that were measured in this session.

    Source: NVIDIA's developer guide ("calibration caches are not portable across releases"; the names of tensors depend
    on the fusions of a release). Releases up to 10.16 have calibrators. A cache states its method only by the name of
    the calibrator.
    """
    ranges = require_fact(facts.range_facts, "no calibration cache is used")
    header = require_fact(ranges.cache_header, "no calibration cache is used")
    name = escape_hidden_characters(ranges.source_name)
    release = tuple(int(part) for part in header.release.split("."))
    if ranges.builder_release and ranges.builder_release.split(".")[:3] != header.release.split(".")[:3]:
        yield (
            f"{name} is a cache of TensorRT {header.release}, and {ranges.builder_release} works here",
            "releases fuse and name tensors differently, and do not accept each other's caches",
            f"Calibrate with {ranges.builder_release}, or here with --calib-data.",
        )
    elif not OLDEST_CACHE_RELEASE <= release[:2] <= NEWEST_CACHE_RELEASE:
        yield (
            f"{name} is a cache of TensorRT {header.release}",
            "8.6 to 10 are supported here, and releases do not accept each other's caches",
            "Calibrate with the release that builds, or here with --calib-data.",
        )
    cache_method = header.range_method or header.algorithm
    for method, requirement in (
        (ranges.fallback_method, "but the missing ranges are measured by"),
        (ranges.requested_method, "and the requested method is"),
    ):
        if method and method != cache_method:
            yield (
                f"{name} was made by {cache_method}, {requirement} {method}",
                "ranges of two methods clip differently, and the results here belong to neither",
                f"Calibrate all of it by {method} with --calib-data, or use --calib-method {cache_method}."
                if cache_method in RANGE_METHODS
                else f"Calibrate all of it by {method} with --calib-data.",
            )
            return


MIN_CALIBRATION_SAMPLES = 32


def find_rejected_target(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the target of a saved session or a config file cannot be used.

    Rule: it warns if the network lacks what the target bounds. The default target is then in use.
    """
    if reason := require_fact(facts.rejected_target_reason, "no target is stored"):
        target_text = " and ".join(target.description for target in facts.targets)
        yield (
            f"the target is the default {target_text}, not the stored one",
            reason,
            "Set a target before you read an outcome.",
        )


def find_few_samples(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the ranges come from fewer than 32 calibration samples.

    Rule: it warns if there are fewer than 32 calibration samples, in this session or for the ranges of a config.

    Source: twelve draws of 8 scenes were measured with the bundled network; 2 scenes of each draw calibrate. Ten draws
    give 11 to 16 dB in INT8. Two give 28 and 33 dB, because no scene with hot pixels calibrates. With 48 scenes the
    result is 11 dB. With fewer than 32 samples, a property of one sample in ten is missed with a probability above 3 %
    (0.9^32).
    """
    require_fact(not facts.has_random_inputs, "random inputs")
    ranges = require_fact(facts.range_facts, "no layer needs a range")
    require_fact(bool(ranges.calibration_samples), "it is not known how many samples have calibrated")
    if ranges.calibration_samples >= MIN_CALIBRATION_SAMPLES:
        return
    subject = "calibration is"
    next_step = (
        f"Give {MIN_CALIBRATION_SAMPLES} or more with --calib-data, or more --data: every fourth batch calibrates."
    )
    if ranges.source == CONFIG_SOURCE:
        subject = f"the ranges of {escape_hidden_characters(ranges.source_name)} are"
        next_step = _recalibration_text(ranges, f"{MIN_CALIBRATION_SAMPLES} samples or more")
    yield (
        f"{subject} from {counted_noun_text(ranges.calibration_samples, 'sample')}",
        f"with fewer than {MIN_CALIBRATION_SAMPLES} the ranges miss rare values, and {facts.quantized_type} "
        "looks better here than it is",
        next_step,
    )


MIN_CHANGE_DB = 1.0
MAX_STEADY_CHANGE_DB = 0.1
MIN_REVERSED_CHANGE_DB = 3.0


def find_sample_divergence(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the accuracy of a quantized run still depends on the number of calibration samples.

    Rule: the SQNR of the worst output is measured with a quarter, a half and all of the calibration samples. The guard
    warns if the SQNR changes by at least 1 dB from a half to all. The change before, from a quarter to a half, must
    have the same sign or be within 0.1 dB. If it has the opposite sign, the limit is 3 dB instead of 1 dB. The values
    are those against FP32 of the network. With another reference, the error of FP32 is subtracted.

    Source: a stable result changes by less. That of the bundled network, whose outliers are rare, changes by 0.0 dB
    from 16 to 24 samples, and by 0.9 dB from there to 48. A simulation differs from its engine by less than 0.5 dB. A
    rising SQNR shows that more samples help. A falling one shows that each additional sample widens min-max ranges, and
    that INT8 looks better with few samples than it is.
    """
    require_fact(len(facts.convergence) > 1, facts.no_convergence_reason or "it was not measured")
    quarter_db, half_db, full_db = values_db = [
        facts.sqnr_without_fp32_error(point.sqnr_db) for point in facts.convergence
    ]
    gain, before = full_db - half_db, half_db - quarter_db
    is_reversed = (before if gain > 0 else -before) < -MAX_STEADY_CHANGE_DB
    min_change_db = MIN_REVERSED_CHANGE_DB if is_reversed else MIN_CHANGE_DB
    if not all(map(math.isfinite, values_db)) or abs(gain) < min_change_db:
        return
    points_text = ", ".join(
        f"{value_db:.1f} dB with {point.samples}" for value_db, point in zip(values_db, facts.convergence, strict=True)
    )
    if gain > 0:
        yield (
            "more calibration samples would help",
            f"{facts.quantized_type} gives {points_text}, and still rises",
            "Give more with --calib-data.",
        )
    else:
        yield (
            f"{facts.quantized_type} falls with more calibration samples",
            f"it gives {points_text}: outliers in a few samples widen all ranges",
            "Give more samples, and try --calib-method percentile or entropy, which leave them out.",
        )


MIN_CLIPPED_SHARE = 0.001
MIN_CALIBRATION_RATIO = 4.0
MIN_EXTERNAL_RANGE_SHARE = 0.01
MAX_NAMED_TENSORS = 3


def find_clipped_values(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if many judged values exceed the range of their tensor and are therefore clipped.

    Rule: a tensor counts if at least 0.1 % of its judged values are larger than 1.1 times its range. In addition, that
    share must be at least four times the share in the calibration samples. If the ranges were not measured in this
    session, a share of 1 % is enough. A tensor that the guard against stale ranges names counts with any share, because
    few values far outside a range are clipped too.

    Source: a percentile of 99.99 leaves 0.01 % of the values outside by design. Entropy and MSE leave somewhat more
    outside, even of the calibration samples; hence the comparison with these. A value clipped from 1.1 times the range
    has an error of 0.1 of the range. A value inside has an error of 1/440 of the range (a step of 1/127 divided by the
    root of 12). A share of 0.1 % of such values adds twice the noise of all others.
    """
    ranges = require_fact(facts.range_facts, "no layer needs a range")
    clipped_shares = require_fact(facts.clipped, "it was not measured")
    is_external = ranges.source != MEASURED_SOURCE
    exceeded_ranges = find_exceeded_ranges(facts)
    shares_over_limit = {
        tensor: clipped.judged_share
        for tensor, clipped in clipped_shares.items()
        if tensor in exceeded_ranges
        or clipped.judged_share >= MIN_CLIPPED_SHARE
        and (
            clipped.judged_share >= MIN_CALIBRATION_RATIO * clipped.calibration_share
            or is_external
            and clipped.judged_share >= MIN_EXTERNAL_RANGE_SHARE
        )
    }
    if not shares_over_limit:
        return
    worst = sorted(shares_over_limit, key=lambda tensor: -shares_over_limit[tensor])
    shares = ", ".join(
        f"{escape_hidden_characters(tensor)} {100 * shares_over_limit[tensor]:.2g} %"
        for tensor in worst[:MAX_NAMED_TENSORS]
    )
    ratio = max((exceeded_ranges.get(tensor, 0.0) for tensor in worst), default=0.0)
    reached_text = f"; values reach {number_text(ratio, 2)} times a range" if ratio else ""
    more = f" and {len(worst) - MAX_NAMED_TENSORS} more" if len(worst) > MAX_NAMED_TENSORS else ""
    cause_text = "" if is_external else "; the calibration samples had smaller values"
    set_count = len(shares_over_limit.keys() & facts.set_ranges)
    set_text = f" The config sets {counted_noun_text(set_count, 'range')} of these: choose again."
    yield (
        f"judged values are outside the range of {counted_noun_text(len(shares_over_limit), 'tensor')}",
        f"they are clipped: {shares}{more}{reached_text}{cause_text}",
        _recalibration_text(ranges, "samples like the judged samples") + (set_text if set_count else ""),
    )


MAX_GAIN_DB = 1.0


def _sqnr_against_fp32_db(accuracy: Accuracy, guard_facts: GuardFacts) -> float | None:
    """Returns the SQNR of the worst output against FP32 of the network, in dB; None if it was not measured."""
    if accuracy.worst_output is None or accuracy.nonfinite_count:
        return None
    name, output = accuracy.worst_output
    return None if output.errors.sqnr_db is None else guard_facts.sqnr_without_fp32_error(output.errors.sqnr_db, name)


def find_fp16_error_floor(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if FP16 rounding alone causes the error of a quantized run.

    Rule: it warns if three conditions hold. The run misses the target, and FP32 does not. A run with all layers in FP16
    misses the target too. The SQNR of the worst output in FP16 is less than 1 dB above that of the run. Both are taken
    against FP32 of the network: with another reference, the error of FP32 against that reference is subtracted. If the
    target bounds a metric, FP16 does not have a better one.

    Source: errors of INT8 layers and of FP16 roundings add up. A run within 1 dB of FP16 has four fifths of its error
    from FP16 (10^-0.1 = 0.79). All its INT8 layers together cause the last fifth.
    """
    accuracy, fp16_accuracy = accuracies = [
        require_fact(accuracy, "the runs are not measured") for accuracy in (facts.accuracy, facts.fp16_accuracy)
    ]
    require_fact(all(item.samples >= item.total for item in accuracies), "the runs are not measured")
    require_fact(
        facts.float_type == "fp16" and facts.is_quantized, "the run does not combine quantized types with FP16"
    )
    for item in accuracies:
        require_fact(_sqnr_against_fp32_db(item, facts), "no SQNR was measured")
    run_db, fp16_db = (_sqnr_against_fp32_db(item.accuracy_on_compared_samples, facts) for item in accuracies)
    if run_db is None or fp16_db is None:
        return
    results = [judge_accuracy(facts.targets[:1], item) for item in accuracies]
    has_better_fp16 = any(
        target.error_metric is None
        and (target.margin_to_bound(fp16_accuracy) or 0.0) > (target.margin_to_bound(accuracy) or 0.0)
        for target in facts.targets[:1]
    )
    if fp32_miss_text(facts) or has_better_fp16 or any(result is None or result.passes for result in results):
        return
    if math.isfinite(run_db) and fp16_db - run_db < MAX_GAIN_DB:
        yield (
            f"FP16 rounding alone causes the error of {facts.run_name}",
            f"FP16 throughout has {fp16_db:.1f} dB, {facts.run_name} {run_db:.1f}, and both miss the "
            f"target: raising layers from {facts.quantized_type} to FP16 does not help",
            "Raise the layers with large shares in the FP16 run to FP32, or use --other bf16.",
        )


MIN_FLOAT_SHARE = 1 / 3


def find_float_fallback(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if a config runs a third or more of the quantizable work in floating point.

    Such a network may need quantization-aware training.

    Rule: the layers in floating point that support the quantized type of the config are compared with all layers that
    support it. The guard warns if they take at least a third of the time in the INT8 engine. Without a timed engine, it
    warns if they have a third of the multiply-accumulate operations.

    Source: NVIDIA's guides suggest quantization-aware training if post-training quantization does not reach the
    accuracy. Floating point has half the rate of INT8. With a third of the products in it, the gain of INT8 over FP16
    falls from 2 to 1.5 (Amdahl). Reformats between the layers come on top.
    """
    float_work = require_fact(
        facts.float_work,
        "the work of some layers is unknown" if facts.is_quantized else "no layer is requested in a quantized type",
    )
    if float_work.float_share >= MIN_FLOAT_SHARE:
        measure = "the time that they take in the INT8 engine" if float_work.is_timed else "their multiply-accumulates"
        fp16_accuracy = facts.fp16_accuracy if facts.float_type == "fp16" else None
        yield (
            f"{percent_text(float_work.float_share)} of {facts.quantized_type} work runs in floating point",
            f"{float_work.float_groups} of {counted_noun_text(float_work.total_groups, 'layer')} that could run in "
            f"{facts.quantized_type} do not, with {percent_text(float_work.float_share)} of {measure}: most of the "
            f"saving of {facts.quantized_type} is lost",
            "FP16 between them overflows, which no range can repair: try --other bf16, which has the range of FP32."
            if fp16_accuracy is not None and fp16_accuracy.nonfinite_count
            else "Consider quantization-aware training, or try other ranges (--calib-method) and zero-cost changes "
            "before layers are raised.",
        )


def measure_float_work_share(
    network: NetworkOutline, config: PrecisionConfig, engine_result: EngineResult | None
) -> FloatWorkShare | None:
    """Returns the share of a config's quantizable work that is executed in floating point.

    Returns None if the default precision of the config is not a quantized type, or if the work is unknown.

    Args:
        engine_result: The engine with all quantizable layers quantized. If its layers were timed, the work is their
            time. If not, the work is the number of multiply-accumulate operations.
    """
    if config.quantized not in QUANTIZED_TYPES:
        return None
    quantizable_groups = [group for group in network.groups if config.quantized in group.allowed_precisions]
    float_groups = [group for group in quantizable_groups if config.precision_of(group) not in QUANTIZED_TYPES]
    implementations = (
        engine_result.implementations if engine_result is not None and engine_result.is_built_as_requested else {}
    )
    times = {
        name: implementation.latency_ms
        for name, implementation in implementations.items()
        if implementation.latency_ms is not None
    }
    is_timed = all(group.name in times for group in quantizable_groups)
    weights = (
        times
        if is_timed
        else {
            group.name: float(sum(network.get_layer(name).macs or 0 for name in group.layers))
            for group in quantizable_groups
        }
    )
    total = sum(weights[group.name] for group in quantizable_groups)
    if not total or not all(weights[group.name] for group in quantizable_groups) and not is_timed:
        return None  # some sizes are unknown, so a share of the others would not be a share of the whole
    return FloatWorkShare(
        sum(weights[group.name] for group in float_groups) / total, is_timed, len(float_groups), len(quantizable_groups)
    )


GUARDS = (
    Guard("rejected-target", "the stored target against the network", find_rejected_target),
    Guard("framework", "FP32 against the reference", find_framework_mismatches),
    Guard("constant-inputs", "judged samples that are all the same", find_equal_samples),
    Guard(
        "unlike-inputs",
        "calibration inputs against judged inputs: min, max, mean, std, channel order",
        find_input_mismatches,
    ),
    Guard("byte-images", "images of whole numbers from 0 to 255 in a float input", find_byte_images),
    Guard("unfit-labels", "class labels against the classes of the output", find_unfit_label_warnings),
    Guard("batch-dependent", "FP32 of single samples against the batch in use", find_batch_dependence),
    Guard("stale-ranges", "ranges of a cache or config against the values of the samples", find_stale_ranges),
    Guard("foreign-cache", "release and method in a calibration cache's first line", find_foreign_cache),
    Guard("few-samples", f"fewer than {MIN_CALIBRATION_SAMPLES} calibration samples", find_few_samples),
    Guard("missing-classes", "classes that no calibration sample has", find_missing_classes),
    Guard(
        "more-samples",
        "the quantized run with a quarter, a half and all of the calibration samples",
        find_sample_divergence,
    ),
    Guard("beyond-range", "judged values outside their range", find_clipped_values),
    Guard("fp16-floor", "error of FP16 rounding alone against the error of the run", find_fp16_error_floor),
    Guard("back-in-float", "share of the quantized work that runs in floating point", find_float_fallback),
)
"""All guards, the most serious first."""


def run_guards(guard_facts: GuardFacts) -> tuple[GuardResult, ...]:
    """Runs all guards on the facts and returns their results in the order of `GUARDS`."""
    results = []
    for guard in GUARDS:
        try:
            results.append(
                GuardResult(guard, tuple(GuardWarning(guard.name, *alarm) for alarm in guard.find_alarms(guard_facts)))
            )
        except MissingFactsError as error:
            results.append(GuardResult(guard, (), str(error)))
    return tuple(results)


def collect_guard_warnings(guard_facts: GuardFacts) -> tuple[GuardWarning, ...]:
    """Runs all guards on the facts and returns their warnings, the most serious first."""
    return tuple(alarm for result in run_guards(guard_facts) for alarm in result.alarms)
