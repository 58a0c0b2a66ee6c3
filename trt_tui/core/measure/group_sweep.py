"""Measuring what single groups do to the judged outputs, as a `Sweep` asks for it.

Samples are run apart from their feeds where that changes nothing: where the rows of every input and judged output are
the samples, and FP32 yields the same for samples of several feeds together. Else whole feeds take their place.
"""

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trt_tui.core.codes import CODES
from trt_tui.core.data.gathered import Place, separable
from trt_tui.core.hands import Alone, Hands, Here
from trt_tui.core.lowering.rules import keeps_precision, surrounding
from trt_tui.core.measure.analysis import Analysis, Measured
from trt_tui.core.measure.judge import INTEGER
from trt_tui.core.measure.sweep import FEWEST, UNSEEN, Figure, Sweep
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import plural

FIRST_RUNS = 6
"""All groups are measured first on so few samples that this takes about so many runs of all samples, at most."""

FIRST = 8
"""All groups are measured first on at most so many samples."""

A_RUN = 1.0
"""What a run takes beside its samples, in samples: so much was measured on an encoder and a U-Net, on a CPU."""

SAME = 1e-6
"""Two FP32 runs agree where their difference has this part of the signal's energy or less."""


@dataclass
class Swept:
    """What was measured, for a sweep that goes on from there.

    Attributes:
        noise: Of the config, Σ(test-ref)² by sample (or feed) and output; empty while it was not measured.
        signal: Σref² of all samples by output.
        apart: Whether samples were run apart from their feeds.
        base: The config's noise as it came out beside the groups', by sample.
        groups: The noise of the config in which a group is changed, by group, for the samples of its stages.
    """

    noise: list[list[float]] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)
    apart: bool = False
    base: dict[int, list[float]] = field(default_factory=dict)
    groups: dict[str, list[list[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """What became of the judged error when one group was changed.

    Attributes:
        figure: Its share that went (all but this lowered), or what it makes alone, as a part of the config's error.
        worst_db: The worst output's SQNR in dB as far as it was measured; None if exact or not finite.
        samples: On how many samples.
    """

    figure: Figure
    worst_db: float | None
    samples: int


Part = tuple[str, tuple[int, ...]]
"""The config with one group changed ("" for none) on some samples, or on a feed."""


class _Whole:
    """An errand: noise and signal of each sample of a feed, see `Analysis.noise`."""

    def __init__(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> None:
        self._config, self._ranges = config, ranges

    def words(self, item: int) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the config on feed {item}"

    def do(self, subject: Measured, item: int) -> Generator[None, None, tuple[np.ndarray, np.ndarray]]:
        """See `trt_tui.core.hands.Errand`."""
        found = np.zeros((0, 0)), np.zeros((0, 0))
        for partial in subject.analysis.noise(self._config, self._ranges, [item]):
            found = partial.value
            yield
        return found


class _Runs:
    """An errand: the noise of the config with one group changed, ``(samples, outputs)``, or with ``apart`` False of a
    feed, ``(1, outputs)``.

    Args:
        places: Where the samples are, feed by feed; `Part` counts them, or with ``apart`` False the feeds.
    """

    def __init__(self, config: PrecisionConfig, ranges: Mapping[str, float], places: Sequence[Sequence[Place]],
                 apart: bool, lowered: bool) -> None:
        self._config, self._ranges, self._places = config, ranges, tuple(map(tuple, places))
        self._apart, self._lowered = apart, lowered
        self._batches: dict[tuple[int, ...], tuple[Analysis, list[int]]] = {}
        self._fp32: PrecisionConfig | None = None
        self._rounded: object = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": {}, "_rounded": None}

    def words(self, item: Part) -> str:
        """See `trt_tui.core.hands.Errand`."""
        name, units = item
        return f"{name or 'the config'} on {plural(len(units), 'sample')}" if self._apart else (
            f"{name or 'the config'} on feed {self._places[units[0]][0][0]}")

    def do(self, subject: Measured, item: Part) -> Generator[None, None, np.ndarray]:
        """See `trt_tui.core.hands.Errand`."""
        (name, units), whole = item, subject.analysis
        if self._rounded is None:
            self._rounded = whole.feeds(self._config, self._ranges)  # held, so that weights are rounded once
        if units not in self._batches:
            if self._apart:
                places = [place for feed in self._places for place in feed]
                self._batches[units] = whole.over([[places[unit] for unit in units]]), [0]
            else:
                self._batches[units] = whole, [self._places[units[0]][0][0]]
        analysis, feeds = self._batches[units]
        noise = np.zeros((0, 0))
        for partial in analysis.noise(self._changed(whole.network, name), self._ranges, feeds):
            noise = partial.value[0]
            yield
        return noise if self._apart else noise.sum(0, keepdims=True)

    def _changed(self, network: Network, name: str) -> PrecisionConfig:
        if not name:
            return self._config
        group = network.group(name)
        if not self._lowered:
            return self._config.with_groups([group], Precision.FP32)
        if self._fp32 is None:
            self._fp32 = replace(self._config.with_groups(network.groups, Precision.FP32), tf32=False)
        return self._fp32.with_groups([group], self._config.precision_of(group))


class GroupSweep:
    """One sweep over the groups of a config.

    Args:
        order: The groups, the most suspicious first; all by default.
        feeds: The feeds to measure on; all by default.
        lowered: Measure what each group does alone, lowered as in the config among others in FP32; else what goes when
            it alone is raised to FP32.
        exact: Measure all groups on all samples.
        known: What was measured before.
        hands: Who runs the groups; this process by default.

    Attributes:
        swept: What was measured so far.
        resting: Groups that change no value; they are not run.
        fresh: Groups of which something new is known; whoever has read it clears it.
    """

    def __init__(self, analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *,
                 order: Sequence[str] | None = None, feeds: Sequence[int] | None = None, lowered: bool = False,
                 exact: bool = False, known: Swept | None = None, hands: Hands[Measured] | None = None) -> None:
        self.analysis, self.config, self.ranges = analysis, config, ranges
        self.indices = analysis.indices(feeds)
        network = analysis.network
        names = list(order) if order is not None else [group.name for group in network.groups]
        self.active = [name for name in names if matters(network, network.group(name), config)]
        self.resting = [name for name in names if name not in set(self.active)]
        self.swept = known if known is not None else Swept()
        self.fresh: list[str] = []
        self.sweep: Sweep | None = None
        self.hands = hands if hands is not None else Here(Alone(analysis))
        self._lowered, self._exact = lowered, exact
        self._took, self._anew = 0.0, dict[str, float]()
        self._rows = [analysis.samples.rows(index) for index in self.indices]

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(self._rows)

    @property
    def energy(self) -> float:
        """The config's judged error; see `trt_tui.core.measure.comparison.Verdict.energy`."""
        return float(self._parts(np.array(self.swept.noise)).sum())

    @property
    def settled(self) -> list[str]:
        """Groups that are not measured any further."""
        sweep = self.sweep
        return self.resting + [name for name in self.active if sweep is not None and name in sweep.settled]

    @property
    def mapped(self) -> bool:
        """Whether something is known of every group."""
        return not self.active or self.sweep is not None and self.sweep.mapped

    @property
    def known(self) -> list[str]:
        """Groups of which something is known."""
        return self.resting + [name for name in self.active if self.sweep is not None and name in self.sweep.values]

    def steps(self) -> Iterator[tuple[float, float]]:
        """Measures; yields after each run what it took so far and, by forecast, what it takes in all, in samples of
        whole runs: near the outputs a group takes less than near the inputs where runs share what they can."""
        swept = self.swept
        if not swept.noise:
            yield from self._measure_base()
        if self.energy == 0 and not self._lowered:  # there is nothing to own
            self.resting, self.active = [*self.resting, *self.active], []
        self.fresh += self.resting
        if not self.active:
            return
        if not swept.apart and not self._exact and self.samples > FEWEST and self._by_sample:
            swept.apart = yield from self._mixes()
        energies = self._parts(np.array(swept.noise)).sum(1)
        if not swept.apart and len(energies) != len(self.indices):
            energies = np.add.reduceat(energies, np.cumsum([0, *self._rows[:-1]]))
        scale = energies[np.isfinite(energies)].sum() or 1.0
        weights = np.where(np.isfinite(energies), energies, scale)
        if not weights.any():
            weights = np.ones(len(weights))
        finite = bool(np.isfinite(energies).all())
        step = self._step if swept.apart else 1
        first = min(FIRST, max(2, FIRST_RUNS * self.samples // len(self.active))) if swept.apart else 1
        sweep = self.sweep = Sweep(self.active, weights, first=first, step=step,
                                   exact=self._exact or not (finite or self._lowered))
        places = [[(index, row) for row in range(rows)] for index, rows in zip(self.indices, self._rows, strict=True)]
        runs = _Runs(self.config, self.ranges, places, swept.apart, self._lowered)
        while asked := sweep.ask():
            yield from self._stage(sweep, runs, asked, finite)

    def _stage(self, sweep: Sweep, runs: _Runs, asked: Mapping[str, tuple[int, ...]], finite: bool
               ) -> Iterator[tuple[float, float]]:
        """Has groups run on samples, and tells the sweep of each."""
        swept, lasting = self.swept, self._lowered or finite
        found: dict[str, dict[tuple[int, ...], np.ndarray]] = {}
        have = {name: len(sweep.values.get(name, ())) for name in asked}
        for name, units in asked.items():
            known = swept.groups.get(name, [])
            if len(known) < have[name] + len(units):
                swept.groups[name], found[name] = known[:have[name]], {}
        batches = list(dict.fromkeys(batch for name in found for batch in self._batched(asked[name])))
        bases = {batch for batch in batches if swept.apart and any(unit not in swept.base for unit in batch)}
        broken: set[str] = set()

        def parts() -> Iterator[Part]:
            for batch in batches:
                if batch in bases:
                    yield "", batch
            for name in list(found):
                for batch in self._batched(asked[name]):
                    if name not in broken:
                        yield name, batch

        def told(name: str) -> None:
            units = asked[name]
            noise = np.array(swept.groups[name][have[name]:have[name] + len(units)])
            sweep.tell(name, self._added(units[:len(noise)], noise))
            self.fresh.append(name)

        for name in [name for name in asked if name not in found]:
            told(name)
            yield self._progress()
        for done in self.hands.work(runs, parts()):
            if done is not None:
                (name, batch), noise = done
                self._took += self._cost(name, len(batch))
                if not name:
                    swept.base.update(zip(batch, noise.tolist(), strict=True))
                    bases.discard(batch)
                elif name in found:
                    found[name][batch] = noise
                    if not (lasting or np.isfinite(noise).all()):
                        broken.add(name)
                for one in [name] if name else list(found) if not bases else ():
                    if one in found and (
                            rows := self._complete(asked[one], found[one], bases, one in broken)) is not None:
                        del found[one]
                        swept.groups[one] = [*swept.groups[one], *rows]
                        told(one)
            yield self._progress()

    def _complete(self, units: Sequence[int], found: Mapping[tuple[int, ...], np.ndarray],
                  bases: Collection[tuple[int, ...]], broken: bool) -> list[list[float]] | None:
        """The noise of a group on all its samples, or up to where it is not finite if it is broken by that: it stays as
        broken as it is, and no other sample changes that. None while something is missing."""
        batches = list(self._batched(units)) if broken or len(found) * self._size >= len(units) else []
        rows: list[list[float]] = []
        for batch in batches:
            if batch not in found or batch in bases:
                return None
            rows += found[batch].tolist()
            if broken and not np.isfinite(found[batch]).all():
                break
        return rows or None

    def of(self, name: str) -> Changed:
        """What is known of a group."""
        sweep = self.sweep
        if name in set(self.resting) or sweep is None:
            db = None if self._lowered else self._worst_db(self._parts(np.array(self.swept.noise)).sum(0))
            return Changed(Figure(0.0, 0.0, 0, True), db, self.samples)
        figure = sweep.figure(name)
        noise = np.array(self.swept.groups[name][:len(sweep.values[name])])
        units = sweep.reached(name).units[:len(noise)]
        samples = len(units) if self.swept.apart else sum(self._rows[unit] for unit in units)
        if not np.isfinite(self._parts(np.array(self.swept.noise))).all() and not self._lowered:
            owns = 1.0 if len(units) == sweep.count and np.isfinite(self._parts(noise)).all() else 0.0
            figure = replace(figure, value=owns, half=0.0)
        outputs = self._parts(noise)
        if len(units) < sweep.count:
            stage = sweep.reached(name)
            weights = (stage.parts / stage.chances)[:len(units)]  # fewer were run where it stays not finite
            outputs = outputs * weights[:, None]
            if not self._lowered:  # in the ratio to the config's, which is known of all samples
                base = (self._parts(self._base(units)) * weights[:, None]).sum(0)
                whole = self._parts(np.array(self.swept.noise)).sum(0)
                with np.errstate(invalid="ignore"):  # a config that is not finite: neither is the figure
                    outputs = outputs * np.where(base > 0, whole / np.where(base > 0, base, 1.0), 1.0)
        return Changed(figure, self._worst_db(outputs.sum(0)), samples)

    def _progress(self) -> tuple[float, float]:
        """See `steps`; what an earlier sweep took is left out."""
        if self.sweep is None:  # the config itself, then the groups on as many samples as are expected of unknown ones
            groups = self.samples * (1.0 if self._exact else UNSEEN) * sum(map(self.analysis.anew, self.active))
            return self._took, max(self.samples, self._took) + groups
        return self._took, self._took + sum(self._cost(name, units) for name, units in self.sweep.left().items())

    def _cost(self, name: str, units: float) -> float:
        """What a group ("" for none) takes on some samples or feeds."""
        rows = 1.0 if self.swept.apart else self.samples / len(self.indices)
        if name not in self._anew:
            self._anew[name] = self.analysis.anew(name) if name else 1.0
        return self._anew[name] * (units * rows + A_RUN * math.ceil(units / self._size))

    # -- running ------------------------------------------------------------------------------------------------------

    def _measure_base(self) -> Iterator[tuple[float, float]]:
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for done in self.hands.work(_Whole(self.config, self.ranges), self.indices):
            if done is not None:
                found[done[0]] = done[1]
                self._took += self._rows[self.indices.index(done[0])] + A_RUN
            yield self._progress()
        apart = all(len(found[index][0]) == rows for index, rows in zip(self.indices, self._rows, strict=True))
        noise, signal = (np.concatenate([found[index][place] if apart else found[index][place].sum(0, keepdims=True)
                                         for index in self.indices]) for place in (0, 1))
        self.swept.noise, self.swept.signal = noise.tolist(), signal.sum(0).tolist()

    @property
    def _by_sample(self) -> bool:
        """Whether inputs and judged outputs are cut into samples."""
        return len(self.swept.noise) == self.samples and separable(self.analysis.samples, self.indices)

    @property
    def _step(self) -> int:
        """How many samples are run at a time: a full feed where the batch is fixed, or where a device waits."""
        network, full = self.analysis.network, max(self._rows)
        by_sample = self.analysis.samples.by_sample
        fixed = any(isinstance(size, int) for info in network.inputs if info.name in by_sample
                    for size in (info.shape or ())[:1])
        return full if fixed or self.analysis.backend.capabilities.device else 1

    def _places(self) -> list[tuple[int, int]]:
        return [(index, row) for index, rows in zip(self.indices, self._rows, strict=True) for row in range(rows)]

    def _mixes(self) -> Generator[tuple[float, float], None, bool]:
        """Returns whether samples of several feeds together yield in FP32 what they yield in their feeds."""
        rows = sorted(reversed(self._places()), key=lambda place: place[1])
        rows = (rows if len(self.indices) > 1 else rows[::-1])[:max(self._rows)]
        mixed = self.analysis.over([rows])
        found = mixed.own(0)
        yield self._progress()
        for one in mixed.judged:
            for place, (index, row) in enumerate(rows):
                expected, got = self.analysis.own(index)[one.tensor][row], found[one.tensor][place]
                if expected.shape != got.shape:
                    return False
                if expected.dtype.kind != "f":
                    if not np.array_equal(expected, got):
                        return False
                    continue
                wide = expected.astype(np.float64)
                both = np.isfinite(wide) & np.isfinite(got)
                if not np.array_equal(np.isfinite(wide), np.isfinite(got)) or (
                        ((got - wide)[both] ** 2).sum() > SAME * (wide[both] ** 2).sum()):
                    return False
        return True

    def _batched(self, units: Sequence[int]) -> Iterator[tuple[int, ...]]:
        for start in range(0, len(units), self._size):
            yield tuple(units[start:start + self._size])

    @property
    def _size(self) -> int:
        """How many samples, or feeds, are run at a time."""
        return max(self._rows) if self.swept.apart else 1

    # -- figures ------------------------------------------------------------------------------------------------------

    def _base(self, units: Sequence[int]) -> np.ndarray:
        """The config's noise on some samples (or feeds), as it came out beside the groups'."""
        if self.swept.apart:
            return np.array([self.swept.base[unit] for unit in units])
        noise = np.array(self.swept.noise)
        if len(noise) != len(self.indices):
            noise = np.add.reduceat(noise, np.cumsum([0, *self._rows[:-1]]))
        chosen: np.ndarray = noise[list(units)]
        return chosen

    def _parts(self, noise: np.ndarray) -> np.ndarray:
        """Noise as parts of the signal of all samples, infinite where it is not finite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts: np.ndarray = noise / np.array(self.swept.signal)
        parts[noise == 0] = 0.0
        parts[~np.isfinite(parts)] = math.inf
        return parts

    def _added(self, units: Sequence[int], noise: np.ndarray) -> np.ndarray:
        """What some samples add to a group's figure; -inf where what was changed is not finite."""
        total, changed = self.energy, self._parts(noise).sum(1)
        if self._lowered:
            return np.where(np.isfinite(changed), changed / (total if 0 < total < math.inf else 1.0), -math.inf)
        base = self._parts(self._base(units)).sum(1)
        with np.errstate(invalid="ignore"):
            added = (base - changed) / (total or 1.0)
        return np.where(np.isfinite(added), added, -math.inf)

    def _worst_db(self, outputs: np.ndarray) -> float | None:
        """The SQNR of the worst output in dB; None if all are exact, one is not finite, or integers are judged."""
        integers = all(one.kind == INTEGER for one in self.analysis.judged)
        worst = float(outputs.max(initial=0.0))
        return None if integers or not 0 < worst < math.inf else -10 * math.log10(worst)


def matters(network: Network, group: Group, config: PrecisionConfig) -> bool:
    """Whether a group changes any value in a config."""
    precision = config.precision_of(group)
    if precision is Precision.FP32:
        return False
    if precision is Precision.FILE:
        return group.given is not None and not group.given.plain
    if precision in CODES:
        return True
    for name in group.layers:
        if not keeps_precision(network.layer(name)):
            return True
    for tensor in group.inputs:
        producer = network.producer.get(tensor)
        source = network.group_of(producer) if producer is not None else None
        if source is None:
            return True
        if surrounding(source, config.precision_of(source), config.other) is not precision:
            return True
    return False
