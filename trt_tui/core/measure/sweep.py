"""Which group is measured next, and on which samples: all on a few, then those that may matter on more.

A `Sweep` runs nothing. It asks for what groups add to a sum on some samples (`ask`), is told (`tell`), and says at any
time what is known (`figure`) and how much is left (`left`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.sampling import Stage, deviation, drawn, estimate, t_quantile

MATTERS = 0.01
"""A group that owns less does not matter: it is not measured further once its interval lies below."""

CLOSE = 0.02
"""A figure is known well enough with an interval of so much to either side."""

APART = 0.02
"""Two groups are in order once neither can own so much more than the other than the estimate says."""

DECIDED = 1.3
"""Decisions stretch the intervals by this much, from 95 % to 99 %: they are taken at every stage anew."""

ORDERED = 0.65
"""Those on the order of two groups shrink theirs, to 80 %: what each owns is known to `CLOSE` besides."""

FEWEST = 8
"""On fewer samples nothing is decided."""

POOLED = 2
"""The spread of a group's samples is forecast from its own with as many degrees of freedom as there are, and from that
of all groups with so many."""

UNSEEN, OUTWEIGHED = 0.5, 4
"""A group of which nothing is known is forecast to need this part of the samples, until more than so many others tell
otherwise."""

_LADDER = (8, 16, 24)
"""Sizes of the stages, and these times 2, 4, ... above 8."""


@dataclass(frozen=True)
class Figure:
    """What is known of one group.

    Attributes:
        value: The estimate; exact where it was taken on all samples.
        half: Half the width of the 95 % interval; 0 where it is exact, NaN where there are too few samples for one.
        units: On how many samples.
        settled: It is not measured on more of them.
    """

    value: float
    half: float
    units: int
    settled: bool


def sizes(count: int, first: int, step: int = 1) -> list[int]:
    """How many of so many samples the stages take, the first one apart multiples of ``step``, up to all."""
    ladder = list(_LADDER)
    while ladder[-1] < count:
        ladder.append(ladder[-2] * 2)
    found = [min(count, max(1, -(-first // step) * step))]
    for size in (-(-size // step) * step for size in ladder):
        if found[-1] < size < count:
            found.append(size)
    return found if found[-1] == count else [*found, count]


class Sweep:
    """See the module's docstring.

    Args:
        names: The groups, the most suspicious first.
        energies: The error that each sample is known to have, finite, ``(samples,)``; some are positive.
        first: On how many samples all groups are measured first.
        step: Samples are run so many at a time.
        exact: Measure all groups on all samples.

    Attributes:
        settled: Groups that are not measured any further.
        done: How many samples were told of, over all groups.
        values: What was told of each group: what it adds on the samples of its stages, in their order.
    """

    def __init__(self, names: Sequence[str], energies: np.ndarray, *, first: int, step: int = 1, exact: bool = False
                 ) -> None:
        self.count = len(energies)
        enough = not exact and self.count > FEWEST
        self.stages = drawn(energies, sizes(self.count, first, step) if enough else [self.count])
        self.names = tuple(names)
        self.values: dict[str, np.ndarray] = {}
        self.done = 0.0
        self._stage = 0
        self._queue = list(names)
        self.settled: set[str] = set()
        self._needs: dict[tuple[str, int], int] = {}
        self._variances: dict[str, float] = {}

    @property
    def mapped(self) -> bool:
        """Whether every group was measured on some samples."""
        return self._stage > 0 or not self._queue

    def ask(self) -> dict[str, tuple[int, ...]]:
        """The groups that are measured next, in any order, with the samples that each is to be measured on; none at the
        end. They do not depend on the order in which groups were told of."""
        while not self._queue:
            if self._stage + 1 >= len(self.stages) or not (going_on := self._going_on()):
                self.settled.update(self.names)
                return {}
            self._stage += 1
            self._queue = going_on
        units = self.stages[self._stage].units
        return {name: units[len(self.values.get(name, ())):] for name in self._queue}

    def tell(self, name: str, added: np.ndarray) -> None:
        """What a group that was asked for adds on those samples; what is not finite settles it."""
        self._queue.remove(name)
        self.values[name] = np.concatenate([self.values.get(name, np.zeros(0)), added])
        self.done += len(added)
        if self._stage + 1 == len(self.stages) or not np.isfinite(added).all():
            self.settled.add(name)

    def figure(self, name: str) -> Figure:
        """What is known of a group that was told of."""
        values = self.values[name]
        if not np.isfinite(values).all():
            return Figure(-math.inf, 0.0, len(values), True)
        return Figure(*estimate(values, self.reached(name)), len(values), name in self.settled)

    def reached(self, name: str) -> Stage:
        """The stage whose samples a group was measured on."""
        count = len(self.values[name])
        return next(stage for stage in self.stages if len(stage.units) >= count)

    def left(self) -> dict[str, float]:
        """How many more samples are expected to be run, of each group that is not settled.

        A group is expected to need so many that the spread of its samples so far would let it be settled; those that
        the first stage has not come to are expected to need as many as those that it has (in the geometric mean: the
        first ones are the most suspicious).
        """
        queued = set(self._queue)
        ahead: dict[str, float] = {name: self._needed(name) for name in self.values
                                   if name not in self.settled and name not in queued}
        size = len(self.stages[self._stage].units)
        seen = [math.log1p(ahead.get(name, 0.0)) for name in self.values if name not in queued]
        prior = OUTWEIGHED * math.log1p(UNSEEN * (self.count - size))
        usual = math.expm1((prior + sum(seen)) / (OUTWEIGHED + len(seen)))
        ahead.update((name, self._needed(name) if name in self.values else size + usual) for name in queued)
        return ahead

    def _needed(self, name: str) -> float:
        """How many more samples a group is expected to need."""
        values, reached = self.values[name], self.reached(name)
        key = name, len(values)
        if key not in self._needs:
            value, freedom = max(0.0, estimate(values, reached)[0]), max(1, len(values) - 1)
            variance = self._variances[name] = deviation(values, reached) ** 2 * len(values) / freedom
            # The median of variances of so few samples is too small: Wilson and Hilferty, 1931, for chi-squared.
            usual = float(np.median([*self._variances.values()])) / (1 - 2 / (9 * freedom)) ** 3
            spread = math.sqrt((freedom * variance + POOLED * usual) / (freedom + POOLED))
            self._needs[key] = next(
                (len(stage.units) for stage in self.stages if max(FEWEST - 1, len(values)) < len(stage.units)
                 and ((half := DECIDED * t_quantile(len(stage.units) - 1) * spread * math.sqrt(stage.spread)) <= CLOSE
                      or value + half < MATTERS)), self.count) - len(values)
        return self._needs[key]

    def _going_on(self) -> list[str]:
        """The groups that the next stage measures, those that own most first; settles the others."""
        stage = self.stages[self._stage]
        measured = [name for name in self.names if name not in self.settled]
        figures = {name: self.figure(name) for name in measured}
        measured.sort(key=lambda name: -figures[name].value)
        if len(stage.units) < FEWEST:
            return measured
        going_on = {name for name in measured
                    if figures[name].value + DECIDED * figures[name].half >= MATTERS
                    and DECIDED * figures[name].half > CLOSE}
        may_matter = [name for name in measured if figures[name].value + DECIDED * figures[name].half >= MATTERS]
        for more, less in zip(may_matter, may_matter[1:], strict=False):
            gap, half = estimate(self.values[more] - self.values[less], stage)
            if ORDERED * half > gap + APART:
                going_on |= {more, less}
        self.settled.update(name for name in measured if name not in going_on)
        return [name for name in measured if name in going_on]
