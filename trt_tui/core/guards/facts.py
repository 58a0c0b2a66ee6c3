"""What guards look at: plain figures, each absent until somebody has measured it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.calibration.cache import CacheHeader
from trt_tui.core.measure.comparison import Errors, Verdict
from trt_tui.core.measure.target import Target

MEASURED, CACHE, CONFIG = "measured", "cache", "config"
"""Where ranges can be from."""


@dataclass(frozen=True)
class SampleStats:
    """An input over some samples; float64 arrays with a row for each sample and a column for each channel.

    Where no axis counts few channels, the whole sample is one.

    Attributes:
        mean: Mean of the values.
        std: Standard deviation of the values.
        low: Least value.
        high: Largest value.
    """

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def samples(self) -> int:
        """How many samples."""
        return len(self.mean)

    @property
    def channels(self) -> int:
        """How many channels."""
        return int(self.mean.shape[1])


@dataclass(frozen=True)
class RangeFacts:
    """The ranges in use, and what samples say of them.

    Attributes:
        source: `MEASURED` on the calibration data, or taken from a `CACHE` or a `CONFIG`.
        name: The file that they are from, or the data.
        method: How they were measured, "" where nobody says.
        samples: On how many samples; 0 where nobody says.
        count: How many tensors have one.
        header: Of a cache.
        rest: The method of the ranges that a cache lacked, "" where it lacked none.
        wanted: The method that the command line or the config asks for, "" where neither does.
        builder: The release of the TensorRT that works here, "" where none does that takes caches.
        sampled: How many samples ``off`` was found on; 0 where it was not looked for.
        compared: How many tensors were compared there.
        off: Range and what samples say it should be (amax, or the nearest that a method would choose), by tensor, where
            they are apart by a factor of 2.
    """

    source: str
    name: str
    method: str = ""
    samples: int = 0
    count: int = 0
    header: CacheHeader | None = None
    rest: str = ""
    wanted: str = ""
    builder: str = ""
    sampled: int = 0
    compared: int = 0
    off: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassFacts:
    """Which classes samples have, by the array of labels.

    Attributes:
        label: The array's name.
        judged: How many of the judged samples have a class, by class; ``judged_samples`` are all of them.
        calibrating: The same of the calibrating ones.
    """

    label: str
    judged: Mapping[int, int]
    judged_samples: int
    calibrating: Mapping[int, int]
    calibrating_samples: int


@dataclass(frozen=True)
class Grown:
    """The worst output's SQNR in dB with ranges from so many of the calibrating samples."""

    samples: int
    sqnr_db: float


@dataclass(frozen=True)
class Beyond:
    """The share of a tensor's values beyond its range, in the judged and in the calibrating samples."""

    judged: float
    calibrating: float


@dataclass(frozen=True)
class InFloat:
    """How much of what INT8 would compute a config computes in floats.

    Attributes:
        share: Of the time, or of the multiply-accumulates.
        timed: Whether it is of the time that an INT8 engine's layers take.
        groups: How many groups are meant, of ``of``.
    """

    share: float
    timed: bool
    groups: int
    of: int


@dataclass(frozen=True)
class Facts:
    """See the module's docstring.

    Attributes:
        random: Whether there are no data but seeded random inputs.
        ranges: The ranges in use.
        inputs: The calibrating samples and the judged ones, by network input.
        same_samples: Whether the calibrating samples are the judged ones.
        equal_samples: How many judged samples there are if all of them are the same, else 0; None if nobody looked.
        classes: By array of labels; None before they were looked for.
        no_classes: Why there are no ``classes``.
        grown: With a quarter, a half and all of the calibrating samples; ``not_grown`` says why there are none.
        beyond: By tensor; None before it was measured.
        framework: FP32 against the outputs that a framework gave, by judged output.
        run: The name of the run that is to do: its config as words.
        verdict: Of that run.
        half: Of the run that is wholly in FP16.
        floats: What that run computes in outside of its codes.
        codes: Whether it is in codes by default.
        quantized: The name of the quantized type of that run: ``INT8``, ``FP8`` or ``INT4``.
        target: What it must reach.
        in_float: Of that run; None where it is not in codes.
    """

    random: bool = False
    ranges: RangeFacts | None = None
    inputs: Mapping[str, tuple[SampleStats, SampleStats]] | None = None
    same_samples: bool = False
    equal_samples: int | None = None
    classes: tuple[ClassFacts, ...] | None = None
    no_classes: str = ""
    grown: tuple[Grown, ...] = ()
    not_grown: str = ""
    beyond: Mapping[str, Beyond] | None = None
    framework: Mapping[str, Errors] | None = None
    run: str = ""
    verdict: Verdict | None = None
    half: Verdict | None = None
    floats: str = ""
    codes: bool = False
    quantized: str = "INT8"
    target: Target | None = None
    in_float: InFloat | None = None

    def with_new(self, new: Facts) -> Facts:
        """These facts, and those that ``new`` knows in their places."""
        nothing = vars(_NOTHING)
        return dataclasses.replace(self, **{name: value for name, value in vars(new).items()
                                            if value is not nothing[name] and value != nothing[name]})


_NOTHING = Facts()
