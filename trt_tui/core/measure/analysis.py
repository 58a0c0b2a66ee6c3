"""What a precision config does to a network: verdicts at the judged outputs.

`Analysis` holds the loaded gated session and the FP32 reference of the judged samples; `trt_tui.core.measure.shares`
and `trt_tui.core.measure.layers` use it. Everything that measures is a generator that yields what is known so far: a
caller can show that, and can stop between two runs by closing the generator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np

from trt_tui.core.data.gathered import Place, gathered
from trt_tui.core.measure.comparison import Caveat, Verdict
from trt_tui.core.measure.failed_runs import FailedRun, rounding_error
from trt_tui.core.measure.fp16_range import find_large_values, range_caveats, uses_fp16
from trt_tui.core.measure.held import FedAgain, Held
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.known_gaps import gap_caveats
from trt_tui.core.measure.magnitudes import MAX_STEPS_OF_FEED
from trt_tui.core.measure.sample_dependence import SampleDependence, measure_dependence
from trt_tui.core.measure.simulation import Simulation
from trt_tui.core.measure.tally import Tally
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.small_layers import has_many_small_layers

T = TypeVar("T")

MAX_FEEDS_MEASURED_FIRST = 16
"""With more feeds the first values of a network of many small layers do not wait for the magnitudes of all."""


@dataclass(frozen=True)
class Partial(Generic[T]):
    """What is known after one more run: ``done`` of ``total`` feeds (or groups) are measured."""

    value: T
    done: int
    total: int

    @property
    def final(self) -> bool:
        """Whether all of them are measured."""
        return self.done >= self.total


class Analysis(Simulation):
    """The simulation of one network on one set of samples: see `Simulation` for what it takes and raises."""

    def verdict(self, config: PrecisionConfig, ranges: Mapping[str, float], feeds: Sequence[int] | None = None, *,
                settle: bool = False) -> Iterator[Partial[Verdict]]:
        """Yields a `Verdict` after each feed; the last one holds for all of them.

        Args:
            settle: Go on with the metric on draws of the samples: the same verdict is yielded again after each draw,
                and in the end with the interval of the metric.

        Raises:
            InputError: an INT8 layer's input has no range, or the metric fails.
        """
        indices = self.indices(feeds)
        tally = self.tally(indices)
        runs = self._runs(config, ranges, indices, compared=True)
        with closing(self._measuring_for(config, indices)) as measuring:
            if len(indices) <= MAX_FEEDS_MEASURED_FIRST and has_many_small_layers(self.network.model.graph):
                for _ in measuring:  # its session is freed before that of the runs is made
                    pass
            for done, (index, (result, sums)) in enumerate(zip(indices, runs, strict=True), 1):
                tally.add(index, result, sums)
                verdict = tally.verdict(with_metric=done in (1, len(indices)))
                if done == len(indices):
                    for _ in measuring:
                        pass
                    verdict = self.with_caveats(verdict, indices, self.config_caveats(config, indices))
                elif done > 1 and not self.samples.portions.crowded:  # the first values do not wait
                    for _ in islice(measuring, MAX_STEPS_OF_FEED):
                        pass
                yield Partial(verdict, done, len(indices))
        for settled in tally.settled(verdict) if settle and indices else ():
            yield Partial(settled, len(indices), len(indices))

    def _measuring_for(self, config: PrecisionConfig, feeds: Sequence[int]) -> Generator[None, None, None]:
        """Measures the magnitudes that the caveats of a config need; yields after each run.

        Simulations on regrouped samples serve shares, which are not judged: they need none.
        """
        if self._owner is None and uses_fp16(self.network, config):
            yield from self.measure_magnitudes(feeds)

    def config_caveats(self, config: PrecisionConfig, feeds: Sequence[int]) -> tuple[Caveat, ...]:
        """Returns the caveats of a simulated config: FP16's range on feeds, and known gaps to engines."""
        if self._owner is not None:
            return ()
        gaps = gap_caveats(self.network, config)
        if not uses_fp16(self.network, config):
            return gaps
        magnitudes = self.magnitudes(feeds)
        if magnitudes is None:
            return (Caveat("unchecked range", "FP16's range was not checked on all samples"), *gaps)
        return (*range_caveats(find_large_values(self.network, config, magnitudes)), *gaps)

    def with_caveats(self, accuracy: Verdict, feeds: Sequence[int], caveats: Sequence[Caveat] = ()) -> Verdict:
        """Joins all caveats of an accuracy that is measured on all of some feeds, and adds how much depends on samples.

        Args:
            caveats: Those of its config, in addition to those of the reference.
        """
        dependence = self._dependence(tuple(feeds))
        meaningless = {name: replace(run, outputs={output: one for output, one in run.outputs.items()
                                                   if output in accuracy.outputs})  # an engine may lack some of them
                       for name, run in dependence.meaningless.items()}
        outputs = {name: replace(one, variation_db=dependence.variations.get(name))
                   for name, one in accuracy.outputs.items()}
        return replace(accuracy, outputs=outputs, meaningless=meaningless,
                       caveats=(*accuracy.caveats, *caveats, *dependence.caveats(list(outputs))))

    def _dependence(self, feeds: tuple[int, ...]) -> SampleDependence:
        """How much the reference depends on the sample, measured once for some feeds."""
        if feeds not in self._dependences:
            single = sum(self.samples.rows(index) for index in feeds) < 2
            self._dependences[feeds] = SampleDependence() if single else measure_dependence(
                self.samples, feeds, self.judged, self.reference, self.classifier, self._scoring)
        return self._dependences[feeds]

    def noise(self, config: PrecisionConfig, ranges: Mapping[str, float], feeds: Sequence[int] | None = None
              ) -> Iterator[Partial[tuple[np.ndarray, np.ndarray]]]:
        """Yields after each feed what each sample adds to the judged error so far; see `Drawing.noise`.

        Raises:
            InputError: an INT8 layer's input has no range.
        """
        indices = self.indices(feeds)
        tally = Tally(self.samples, indices, self.judged, self.reference)
        runs = self._runs(config, ranges, indices, compared=True)
        for done, (index, (result, sums)) in enumerate(zip(indices, runs, strict=True), 1):
            tally.add(index, result, sums)
            yield Partial(tally.noise(), done, len(indices))

    def over(self, batches: Sequence[Sequence[Place]]) -> Analysis:
        """The same simulation on feeds of single samples (`gathered`), without a metric, with the session loaded here.

        Errors are taken against what each sample yields in its own feed.
        """
        other = copy.copy(self)
        other.samples, other._owner, other._places = gathered(self.samples, batches), self, tuple(batches)
        other.metric, other._scoring = None, None
        other.tensors = tuple(dict.fromkeys(one.tensor for one in self.judged))
        other._parts, other._sums = {}, {}
        other._dependences = {}
        other._fed = FedAgain(other.samples, self.backend.capabilities.device)
        other._own, other._reference, other._magnitudes = Held(), Held(), {}
        return other

    def outputs(self, config: PrecisionConfig, ranges: Mapping[str, float],
                feeds: Sequence[int] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yields ``tensors`` of a config, feed by feed: what is judged, what a metric is given, what was asked for.

        Raises:
            InputError: an INT8 layer's input has no range, or rounding makes the run fail.
        """
        for result, _ in self._runs(config, ranges, self.indices(feeds)):
            if isinstance(result, FailedRun):
                raise rounding_error(result.caveat.text)
            yield result

    def reference_metric(self, feeds: Sequence[int] | None = None) -> dict[str, float]:
        """The metric of the reference and its parts, the headline first; {} without one.

        It is that of the network's own FP32 where the reference lacks what the metric is given.

        Raises:
            InputError: the metric fails.
        """
        if self._scoring is None:
            return {}
        indices = self.indices(feeds)
        return self._scoring.score([self._scored(i) for i in indices], indices)

    def tally(self, feeds: Sequence[int], judged: Sequence[Judged] | None = None, *,
              against: Callable[[int], Mapping[str, np.ndarray]] | None = None, scored: bool = True) -> Tally:
        """An empty tally over some feeds, for the outputs of another backend (an engine).

        Args:
            against: Yields the tensors of a feed that errors are taken against; those of `reference` for None.
            scored: Whether what is added has all that the metric is given.
        """
        return Tally(
            self.samples, feeds, self.judged if judged is None else judged, against or self.reference,
            classifier=self.classifier, scoring=self._scoring if scored else None)


class Measured(Protocol):
    """What errands of the simulation need of a subject (`trt_tui.core.hands.Errand`)."""

    @property
    def analysis(self) -> Analysis:
        """The simulation on the judged samples."""
