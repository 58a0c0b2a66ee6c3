"""How much the reference depends on the sample: its variation between samples, and runs whose outputs mean nothing.

A pass proves little if outputs that have nothing to do with their inputs pass as well. Both values depend on the
network and the data alone, so they are measured once for all configs:

- The variation of an output is the energy of its deviations from their mean over the samples, relative to its whole
  energy. Most of an SQNR far above it is the SQNR of a constant.
- The shuffled run gives each sample what the reference has for another one. A metric is also computed on the
  reference's values in any order, which a reference on wrong inputs may not exceed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.bootstrap import other_of_each, rows_of
from trt_tui.core.measure.comparison import Caveat, Errors, OutputErrors, Verdict
from trt_tui.core.measure.judge import INTEGER, Judged, take
from trt_tui.core.measure.masks import kept_elements
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.scoring import SHUFFLED, Scoring
from trt_tui.words import variation, visible

MAX_ELEMENTS = 1 << 18
"""Of larger samples so many elements are looked at, drawn by chance: the values are means over elements."""

STEADY_DB = -66.0
"""An output that varies less is steady: its samples differ by less than half a step of FP16, 2^-11 of a value, so FP16
could not tell them apart. Boxes on a grid and other outputs with a large constant part vary by -40 dB or more."""

LITTLE_DB = -20.0
"""Reports name outputs that vary by less: a hundredth of their energy."""


@dataclass
class _Variation:
    """Sums over samples of the differences from the first one, which lose no digits if samples are alike."""

    first: np.ndarray
    count: int = 0
    energy: float = 0.0
    squares: float = 0.0
    sums: np.ndarray | float = 0.0

    def add(self, rows: np.ndarray) -> None:
        """Adds samples, float64 ``(samples, elements)``."""
        differences = rows - self.first
        self.count += len(rows)
        self.energy += float(np.einsum("ij,ij->", rows, rows))
        self.squares += float(np.einsum("ij,ij->", differences, differences))
        self.sums = self.sums + differences.sum(0)

    @property
    def decibels(self) -> float | None:
        """The variation in dB, unbiased; minus infinity if the samples are equal, None with a single one."""
        if self.count < 2:
            return None
        deviations = self.squares - float(np.square(self.sums).sum()) / self.count
        share = deviations / self.energy * self.count / (self.count - 1) if self.energy > 0 else 0.0
        return 10 * math.log10(share) if share > 0 else -math.inf


@dataclass(frozen=True)
class SampleDependence:
    """How much the reference depends on the sample.

    Attributes:
        variations: The variation in dB by judged float output; without those whose samples have several shapes.
        meaningless: The accuracy of runs that mean nothing, by `trt_tui.core.measure.scoring.SHUFFLED` and `SCRAMBLED`.
            The shuffled one lacks what cannot be exchanged between samples, the scrambled one has the metric alone: any
            other value is worse than when shuffled.
    """

    variations: Mapping[str, float] = field(default_factory=dict)
    meaningless: Mapping[str, Verdict] = field(default_factory=dict)

    def caveats(self, outputs: Sequence[str]) -> tuple[Caveat, ...]:
        """A caveat for each of some judged outputs that is steady."""
        steady = [(name, self.variations[name]) for name in outputs if self.variations.get(name, 0.0) < STEADY_DB]
        return tuple(Caveat("steady output", f"{visible(name)} hardly varies between samples "
                            f"(variation: {variation(level)})")
                     for name, level in steady)


def measure_dependence(samples: Samples, feeds: Sequence[int], judged: Sequence[Judged],
                       reference: Callable[[int], Mapping[str, np.ndarray]], classifier: Judged | None,
                       scoring: Scoring | None) -> SampleDependence:
    """Measures how much the reference depends on the sample; see `trt_tui.core.measure.tally.Tally`."""
    variations: dict[str, _Variation | None] = {}
    sums = {one.name: Sums() for one in judged if one.kind != INTEGER}
    differ = {one.name: [0, 0] for one in judged if one.kind == INTEGER}
    fixed: set[str] = set()
    agreed = count = 0
    donors = other_of_each(len(feeds))
    for place, index in enumerate(feeds):
        rows, tensors = samples.rows(index), reference(index)
        other, places = tensors, other_of_each(rows)
        if len(feeds) > 1:
            other = reference(feeds[donors[place]])
            places = np.arange(rows) % samples.rows(feeds[donors[place]])
        count += rows
        for one in judged:
            own, given = take(tensors[one.tensor], one), take(other[one.tensor], one)
            if own.ndim and len(own) == rows and given.ndim and len(given) > places.max(initial=0):
                given = given[places]
            exchanged = own.shape == given.shape and (len(feeds) > 1 or own.ndim > 0 and len(own) == rows > 1)
            if not exchanged:
                fixed.add(one.name)
            if one.kind == INTEGER:
                if exchanged:
                    differ[one.name][0] += int(np.count_nonzero(own != given))
                    differ[one.name][1] += own.size
                continue
            kept = kept_elements(one, samples, index, tensors[one.tensor])
            here = _elements(own, kept, rows)
            known = variations.setdefault(one.name, _Variation(here[0].copy()))
            if known is not None and known.first.size == here.shape[1]:
                known.add(here)
            else:
                variations[one.name] = None
            if exchanged:
                sums[one.name].add(here, _elements(given, kept, rows))
                if one is classifier:
                    agreed += int((own.reshape(rows, -1).argmax(1) == given.reshape(rows, -1).argmax(1)).sum())
    outputs = {}
    for one in judged:
        if one.name not in fixed:
            integers = differ.get(one.name)
            outputs[one.name] = OutputErrors(sums[one.name].errors() if integers is None else Errors(
                mismatch=integers[0] / (integers[1] or 1), exact=not integers[0]))
    levels = {name: one.decibels for name, one in variations.items() if one is not None}
    metrics = scoring.meaningless(feeds) if scoring is not None else {}
    agreement = agreed / count if classifier is not None and not fixed else None
    runs = {SHUFFLED: Verdict(outputs, metrics.get(SHUFFLED, {}), agreement, count, count)}
    runs |= {name: Verdict({}, metric, None, count, count) for name, metric in metrics.items() if name not in runs}
    return SampleDependence({name: level for name, level in levels.items() if level is not None}, runs)


def _elements(array: np.ndarray, kept: np.ndarray | None, rows: int) -> np.ndarray:
    """The elements of each sample that are looked at, float64 ``(samples, elements)``; 0 for what does not count."""
    flat = rows_of(array if kept is None else np.where(kept, array, 0), rows)
    if flat.shape[1] > MAX_ELEMENTS:
        flat = flat[:, np.random.default_rng(0).integers(0, flat.shape[1], MAX_ELEMENTS)]
    flat = flat.astype(np.float64)
    return np.where(np.isfinite(flat), flat, 0.0)
