"""Guards: the facts that they look at, and the warnings that they return.

Facts are plain values; each is None until it has been measured.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from trt_tui.core.calibration.cache import CacheHeader
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target import Target

MEASURED_SOURCE, CACHE_SOURCE, CONFIG_SOURCE = "measured", "cache", "config"
"""Where ranges can be from."""


@dataclass(frozen=True)
class InputStats:
    """An input over some samples; float64 arrays with a row for each sample and a column for each channel.

    Where no axis counts few channels, the whole sample is one.

    Attributes:
        mean: Mean of the values.
        std: Standard deviation of the values.
        minimum: Least value.
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
    """The ranges in use, and what samples say of them.

    Attributes:
        source: `MEASURED_SOURCE` on the calibration data, or taken from a `CACHE_SOURCE` or a `CONFIG_SOURCE`.
        source_name: The file that they are from, or the data.
        method: How they were measured, "" where nobody says.
        calibration_samples: On how many samples; 0 where nobody says.
        cache_header: Of a cache.
        fallback_method: The method of the ranges that a cache lacked, "" where it lacked none.
        requested_method: The method that the command line or the config asks for, "" where neither does.
        builder_release: The release of the TensorRT that works here, "" where none does that takes caches.
        checked_samples: How many samples ``mismatches`` was found on; 0 where it was not looked for.
        compared_tensors: How many tensors were compared there.
        mismatches: Range and what samples say it should be (amax, or the nearest that a method would choose), by
            tensor, where they are apart by a factor of 2.
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
    """Which classes samples have, by the array of labels.

    Attributes:
        label_array: The array's name.
        judged_counts: How many of the judged samples have a class, by class; ``judged_samples`` are all of them.
        calibration_counts: The same of the calibrating ones.
    """

    label_array: str
    judged_counts: Mapping[int, int]
    judged_samples: int
    calibration_counts: Mapping[int, int]
    calibration_samples: int


@dataclass(frozen=True)
class CalibrationConvergencePoint:
    """The worst output's SQNR in dB with ranges from so many of the calibrating samples."""

    samples: int
    sqnr_db: float


@dataclass(frozen=True)
class ClippedShare:
    """The share of a tensor's values beyond its range, in the judged and in the calibrating samples."""

    judged_share: float
    calibration_share: float


@dataclass(frozen=True)
class FloatWorkShare:
    """How much of what INT8 would compute a config computes in floats.

    Attributes:
        float_share: Of the time, or of the multiply-accumulates.
        is_timed: Whether it is of the time that an INT8 engine's layers take.
        float_groups: How many groups are meant, of ``total_groups``.
    """

    float_share: float
    is_timed: bool
    float_groups: int
    total_groups: int


@dataclass(frozen=True)
class GuardFacts:
    """See the module's docstring.

    Attributes:
        has_random_inputs: Whether there are no data but seeded random inputs.
        range_facts: The ranges in use.
        input_stats: The calibrating samples and the judged ones, by network input.
        judges_calibration_samples: Whether the calibrating samples are the judged ones.
        equal_sample_count: How many judged samples there are if all of them are the same, else 0; None if nobody
        looked.
        class_facts: By array of labels; None before they were looked for.
        no_classes_reason: Why there are no ``class_facts``.
        convergence: With a quarter, a half and all of the calibrating samples; ``no_convergence_reason`` says why there
        are none.
        clipped: By tensor; None before it was measured.
        framework_errors: FP32 against the outputs that a framework gave, by judged output.
        run_name: The name of the run that is to do: its config as words.
        accuracy: Of that run.
        fp16_accuracy: Of the run that is wholly in FP16.
        float_type: What that run computes in outside of its codes.
        is_quantized: Whether it is in codes by default.
        quantized_type: The name of the quantized type of that run: ``INT8``, ``FP8`` or ``INT4``.
        target: What it must reach.
        float_work: Of that run; None where it is not in codes.
    """

    has_random_inputs: bool = False
    range_facts: RangeFacts | None = None
    input_stats: Mapping[str, tuple[InputStats, InputStats]] | None = None
    judges_calibration_samples: bool = False
    equal_sample_count: int | None = None
    class_facts: tuple[LabelClassFacts, ...] | None = None
    no_classes_reason: str = ""
    convergence: tuple[CalibrationConvergencePoint, ...] = ()
    no_convergence_reason: str = ""
    clipped: Mapping[str, ClippedShare] | None = None
    framework_errors: Mapping[str, ErrorMetrics] | None = None
    run_name: str = ""
    accuracy: Accuracy | None = None
    fp16_accuracy: Accuracy | None = None
    float_type: str = ""
    is_quantized: bool = False
    quantized_type: str = "INT8"
    target: Target | None = None
    float_work: FloatWorkShare | None = None

    def merge_newer_facts(self, newer_facts: GuardFacts) -> GuardFacts:
        """These facts, and those that ``newer_facts`` knows in their places."""
        defaults = vars(_NO_FACTS)
        return dataclasses.replace(self, **{name: value for name, value in vars(newer_facts).items()
                                            if value is not defaults[name] and value != defaults[name]})


_NO_FACTS = GuardFacts()


@dataclass(frozen=True)
class GuardWarning:
    """What a guard warns of.

    Attributes:
        guard_name: The guard's name.
        summary: What is so, in a line.
        reason: Why it matters, with the figures, in a sentence.
        next_step: What to do now, in a sentence.
    """

    guard_name: str
    summary: str
    reason: str
    next_step: str

    @property
    def warning_line(self) -> str:
        return f"{self.summary}: {self.reason}. {self.next_step}"


def warning_record(warning: GuardWarning) -> dict[str, str]:
    """An alarm as files hold it."""
    return {"guard": warning.guard_name, "what": warning.summary, "why": warning.reason, "next": warning.next_step}


class Guard(ABC):
    """Looks at facts and warns, or says why it cannot tell.

    Attributes:
        name: By which files and `preflight` call it.
        description: What it looks at, in a few words.
    """

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing, "" where they do."""

    @abstractmethod
    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields what it warns of; called only where nothing lacks."""

    def make_warning(self, summary: str, reason: str, next_step: str) -> GuardWarning:
        """An alarm of this guard."""
        return GuardWarning(self.name, summary, reason, next_step)


@dataclass(frozen=True)
class GuardResult:
    """What one guard makes of some facts.

    Attributes:
        missing_facts_reason: Why it could not look, "" where it did.
    """

    guard: Guard
    alarms: tuple[GuardWarning, ...]
    missing_facts_reason: str = ""
