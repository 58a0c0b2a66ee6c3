"""The facts that guards check, the warnings that they yield, and the form of a guard.

Facts are plain values. Each fact is None until it is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from trt_tui.core.calibration.cache import CacheHeader
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target import Target

T = TypeVar("T")

MEASURED_SOURCE, CACHE_SOURCE, CONFIG_SOURCE = "measured", "cache", "config"
"""The sources of ranges."""


@dataclass(frozen=True)
class InputStats:
    """Statistics of one network input over samples: float64 arrays with a row per sample and a column per channel.

    If the input has no axis of few entries that can be channels, the whole sample is one channel.

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
    """The ranges in use, with their origin and the result of a comparison with samples.

    Attributes:
        source: `MEASURED_SOURCE` if measured on the calibration data, `CACHE_SOURCE` or `CONFIG_SOURCE` if read from a
            file.
        source_name: The file or the data of the ranges.
        method: The range method; "" if unknown.
        calibration_samples: Number of calibration samples; 0 if unknown.
        cache_header: The header of a calibration cache; None without a cache.
        fallback_method: The method of the ranges that a cache lacked; "" if it lacked none.
        requested_method: The method that the command line or the config requests; "" if neither does.
        builder_release: The release of the TensorRT on this machine; "" if none works that reads caches.
        checked_samples: Number of samples used to find ``mismatches``; 0 if the ranges were not compared.
        compared_tensors: Number of tensors that were compared.
        mismatches: Ranges that differ from the samples by a factor of 2, by tensor: the amax in use, and the amax of
            the samples, or the nearest one that a range method would choose.
    """

    source: str
    source_name: str
    method: str = ""
    calibration_samples: int = 0
    cache_header: CacheHeader | None = None
    fallback_method: str = ""
    requested_method: str = ""
    builder_release: str = ""
    checked_samples: int = 0
    compared_tensors: int = 0
    mismatches: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelClassFacts:
    """The classes in the judged and calibration samples, from one array of labels.

    Attributes:
        label_array: The name of the array.
        judged_counts: Number of judged samples with each class. ``judged_samples`` is the number of all of them.
        calibration_counts: The same for the calibration samples.
    """

    label_array: str
    judged_counts: Mapping[int, int]
    judged_samples: int
    calibration_counts: Mapping[int, int]
    calibration_samples: int


@dataclass(frozen=True)
class UnfitLabels:
    """Labels that do not fit the classes of an output.

    Attributes:
        label_array: The name of the array.
        output: The output with the classes. ``class_count`` is their number.
        outside: Labels that are not classes, sorted.
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
    """The SQNR in dB of the worst output if the ranges come from a given number of calibration samples."""

    samples: int
    sqnr_db: float


@dataclass(frozen=True)
class ClippedShare:
    """The share of a tensor's values outside its range, in the judged samples and in the calibration samples."""

    judged_share: float
    calibration_share: float


@dataclass(frozen=True)
class FloatWorkShare:
    """The share of a config's quantizable work that runs in floating point.

    Attributes:
        float_share: A share of the time, or of the multiply-accumulate operations.
        is_timed: True if it is a share of the time of the layers in an INT8 engine.
        float_groups: Number of groups in floating point, of ``total_groups`` quantizable ones.
    """

    float_share: float
    is_timed: bool
    float_groups: int
    total_groups: int


@dataclass(frozen=True)
class GuardFacts:
    """The facts about samples, ranges and results that guards check.

    Attributes:
        has_random_inputs: True if there are only seeded random inputs.
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
        framework_errors: The errors of FP32 against the framework's outputs, by judged output.
        run_name: The name of the run of interest: its config as text.
        accuracy: The accuracy of that run.
        fp16_accuracy: The accuracy of the run with all layers in FP16.
        fp32_accuracy: The accuracy of FP32 on all samples against another reference; None if FP32 is the reference.
        reference_name: The name of the other reference.
        float_type: The float type of that run outside quantized layers.
        is_quantized: True if the default precision of that run is a quantized type.
        quantized_type: The name of its quantized type: ``INT8``, ``FP8``, ....
        targets: The targets of that run.
        float_work: The share of its work in floating point; None if it is not quantized.
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
    float_work: FloatWorkShare | None = None

    def subtract_fp32_error(self, sqnr_db: float, output_name: str = "") -> float:
        """Returns the SQNR against FP32 of the network in dB, from that against the reference.

        Both are those on the samples that judge every run. The result is infinite if FP32 has the whole error against
        the reference.

        Args:
            output_name: The judged output; "" for the worst one.
        """
        outputs = self.fp32_accuracy.on_compared_samples.outputs if self.fp32_accuracy is not None else {}
        fp32_ratios = [10**(-output.errors.sqnr_db / 10) for name, output in outputs.items()
                       if output.errors.sqnr_db is not None and output_name in ("", name)]
        ratio = 10**(-sqnr_db / 10) - max(fp32_ratios, default=0.0)
        return -10 * math.log10(ratio) if ratio > 0 else math.inf

    def merge_newer_facts(self, newer_facts: GuardFacts) -> GuardFacts:
        """Returns a copy of these facts, updated with all facts that ``newer_facts`` contains."""
        defaults = vars(_NO_FACTS)
        return dataclasses.replace(self, **{name: value for name, value in vars(newer_facts).items()
                                            if value is not defaults[name] and value != defaults[name]})


_NO_FACTS = GuardFacts()


@dataclass(frozen=True)
class GuardWarning:
    """A warning of a guard.

    Attributes:
        guard_name: The name of the guard.
        summary: The problem in one line.
        reason: The reason why it matters, with the measured values, as a sentence.
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
    """Returns a warning as lines of a report."""
    return [f"{warning.guard_name}: {warning.summary}", f"  Why: {warning.reason}", f"  Next: {warning.next_step}"]


class MissingFactsError(Exception):
    """The facts are not sufficient for a guard. The text is the reason."""


def require(fact: T | None, missing_reason: str) -> T:
    """Returns a fact that a guard needs, or that a condition of the guard holds.

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
    """The warnings of one guard for some facts, or the reason why it could not decide.

    Attributes:
        missing_facts_reason: The reason why the guard could not decide; "" if it did.
    """

    guard: Guard
    alarms: tuple[GuardWarning, ...]
    missing_facts_reason: str = ""
