"""What a precision config does to a network: verdicts at the judged outputs, errors at the groups, and shares.

`Analysis` holds the loaded gated session and the FP32 reference of the judged samples. Every method that measures is a
generator: it yields what is known so far, so that a caller can show it and stop between two runs by closing it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated import SUMS, Gated, lower_gated
from trt_tui.core.lowering.rules import LOW_FLOATS, Offer, keeps_precision, surrounding
from trt_tui.core.measure import metrics
from trt_tui.core.measure.comparison import Errors, GroupErrors, OutputErrors, Share, Verdict
from trt_tui.core.measure.judge import INTEGER, Judged, class_scores, take, tensor_outputs
from trt_tui.core.measure.metric import Metric
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_LEAST_NORMAL, FP16_MAX, Precision
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError, TrtTuiError

_COUNTS = [SUMS.index("fp16_over"), SUMS.index("fp16_under")]

REFERENCE_BYTES = 256 << 20
"""The reference's judged tensors stay in memory up to this size, and lie in a temporary file beyond."""


@dataclass(frozen=True)
class Partial:
    """What is known after one more run: ``done`` of ``total`` feeds (or groups) are measured."""

    value: object
    done: int
    total: int

    @property
    def final(self) -> bool:
        return self.done >= self.total


@dataclass(frozen=True)
class Impact(Share):
    """What one group does to the judged outputs, measured both ways; the whole of a `Share`, and

    ``owns`` is NaN where all-but-this was not asked for.

    Attributes:
        energy: The judged error (`Verdict.energy`) with this group alone as in the run and all others in FP32; infinite
            where that brings about NaN or Inf, 0 where the group changes no value, None if it was not measured.
        samples: How many samples it was measured on.
    """

    energy: float | None = None
    samples: int = 0


class Analysis:
    """The simulation of one network on one set of samples, used as a context manager.

    Args:
        samples: The judged samples; every figure is taken on all of them unless a method is told otherwise.
        judged: What errors are taken at; see `trt_tui.core.measure.judge.judged_outputs`.
        metric: The user's metric; used where the samples have labels.
        other: What surrounds INT8 layers in the first configs to come. The session is loaded anew, with more on offer,
            for a config that needs what it does not offer.

    Raises:
        InputError: a judged tensor lies inside a fused group.
    """

    def __init__(
        self,
        network: Network,
        backend: Backend,
        samples: Samples,
        judged: Sequence[Judged],
        *,
        metric: Metric | None = None,
        other: Precision = Precision.FP16,
    ) -> None:
        self.network = network
        self.backend = backend
        self.samples = samples
        self.judged = tuple(judged)
        self.metric = metric if samples.has_labels else None
        self.offer = Offer.of({other} & set(LOW_FLOATS) or {Precision.FP16}, {other})
        self.classifier = class_scores(network, self.judged)
        self.sessions = 0
        self._gated: Gated | None = None
        self._runner: Runner | None = None
        self._reference = _Spool()
        names = [one.tensor for one in self.judged]
        if self.metric is not None:
            names += tensor_outputs(network)
        self._tensors = tuple(dict.fromkeys(names))

    def __enter__(self) -> Analysis:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the session and the reference."""
        if self._runner is not None:
            self._runner.close()
            self._runner = self._gated = None
        self._reference.close()

    # -- the gated session --------------------------------------------------------------------------------------

    def _session(self, config: PrecisionConfig) -> tuple[Gated, Runner]:
        """A loaded graph that offers what a config needs, and all that was needed before."""
        needed = Offer.needed(self.network, config)
        if self._runner is not None and not self.offer.covers(needed):
            self._runner.close()
            self._runner = self._gated = None
        if self._runner is None:
            offer = self.offer | needed
            gated = lower_gated(self.network, floats=offer.floats, others=offer.others, outputs=self._tensors)
            self._runner = self.backend.load(gated.model, lean=True)
            self._gated, self.offer = gated, offer
            self.sessions += 1
        return self._gated, self._runner

    def _runs(self, config: PrecisionConfig, ranges: Mapping[str, float],
              indices: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
        """Yields what a config yields at the judged tensors, feed by feed."""
        fed_to, fed = None, {}
        for index in indices:
            gated = self._session(config)[0]
            if gated is not fed_to:
                fed_to, fed = gated, gated.feeds(config, ranges)
            yield self._run(index, fed)

    def _run(self, index: int, fed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._gated.outputs
        fetched = self._runner.run({**self.samples.feed(index), **fed}, [outputs[t] for t in self._tensors])
        return {tensor: comparable(fetched[outputs[tensor]]) for tensor in self._tensors}

    def reference(self, index: int) -> dict[str, np.ndarray]:
        """The FP32 network's judged tensors for one feed, measured once.

        Raises:
            InputError: they hold NaN, or the network cannot run these data.
        """
        if index not in self._reference:
            result = next(self._runs(PrecisionConfig.uniform(Precision.FP32), {}, [index]))
            for tensor, array in result.items():
                if array.dtype.kind == "f" and np.isnan(array).any():
                    raise InputError(f"the FP32 network yields NaN at {tensor}",
                                     f"feed {index} of {self.samples.source} brings it about",
                                     "No precision can be judged against it: check the network and the data.")
            self._reference.put(index, result)
        return self._reference.get(index)

    # -- verdicts -----------------------------------------------------------------------------------------------

    def verdict(self, config: PrecisionConfig, ranges: Mapping[str, float],
                feeds: Sequence[int] | None = None) -> Iterator[Partial]:
        """Yields a `Verdict` after each feed; the last one holds for all of them.

        Raises:
            InputError: an INT8 layer's input has no range, or the metric fails.
        """
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        tally = self.tally(indices)
        for done, (index, result) in enumerate(zip(indices, self._runs(config, ranges, indices), strict=True), 1):
            tally.add(index, result)
            yield Partial(tally.verdict(with_metric=done in (1, len(indices))), done, len(indices))

    def outputs(self, config: PrecisionConfig, ranges: Mapping[str, float],
                feeds: Sequence[int] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yields what the config yields at the judged tensors, with a metric also at the other outputs, feed by feed.

        Raises:
            InputError: an INT8 layer's input has no range.
        """
        yield from self._runs(config, ranges, range(len(self.samples)) if feeds is None else feeds)

    def reference_metric(self, feeds: Sequence[int] | None = None) -> dict[str, float]:
        """The metric of the FP32 network; {} without one."""
        if self.metric is None:
            return {}
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        return self.score([self.reference(i) for i in indices], indices)

    def score(self, outputs: Sequence[Mapping[str, np.ndarray]], indices: Sequence[int]) -> dict[str, float]:
        """The user's metric over outputs of some feeds, parts included, the headline first."""
        labels = [self.samples.labels(i) for i in indices]
        names = tensor_outputs(self.network)
        result = self.metric(
            {name: np.concatenate([np.atleast_1d(one[name]) for one in outputs]) for name in names},
            {name: np.concatenate([one[name] for one in labels]) for name in labels[0]})
        return dict(result.parts) or {self.metric.name: result.value}

    def tally(self, feeds: Sequence[int], judged: Sequence[Judged] | None = None) -> Tally:
        """An empty tally over some feeds, for what another backend (an engine) yields."""
        return Tally(self, feeds, self.judged if judged is None else judged)

    # -- shares -------------------------------------------------------------------------------------------------

    def shares(self, config: PrecisionConfig, ranges: Mapping[str, float], *, order: Sequence[str] | None = None,
               feeds: Sequence[int] | None = None) -> Iterator[Partial]:
        """Yields ``{group: Share}`` of what was measured since the last yield: what a group owns of the judged error.

        One yield is one run of one feed, so most yields hold nothing new. Groups that already run in FP32, and those
        that only pass on values of their own precision, own nothing and are not run. Where the config's judged error
        is not finite, a group that makes it finite owns all of it, any other nothing.

        Args:
            order: Groups to measure, most suspicious first; all by default.
        """
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        groups = [self.network.group(n) for n in order] if order is not None else list(self.network.groups)
        active = [group for group in groups if self._matters(group, config)]
        base = Verdict({})
        for partial in self.verdict(config, ranges, indices):
            base = partial.value
            yield Partial({}, 0, len(active) or 1)
        resting = {group.name: Share(0.0, _worst_db(base)) for group in groups if group not in active}
        yield Partial(resting, 0 if active else 1, len(active) or 1)
        for done, group in enumerate(active, 1):
            raised = config.with_groups([group], Precision.FP32)
            verdict = Verdict({})
            for partial in self.verdict(raised, ranges, indices):
                verdict = partial.value
                if not partial.final:
                    yield Partial({}, done - 1, len(active))
            yield Partial({group.name: Share(_owns(base, verdict), _worst_db(verdict))}, done, len(active))

    def impacts(self, config: PrecisionConfig, ranges: Mapping[str, float], *,
                known: Mapping[str, Impact] | None = None, order: Sequence[str] | None = None,
                feeds: Sequence[int] | None = None, few: int = 1, top: int = 16, owns: bool = True
                ) -> Iterator[Partial]:
        """Yields ``{group: Impact}`` of what was measured since the last yield: each group's impact both ways.

        All groups are measured on the first ``few`` feeds, then the ``top`` ones of either ranking on all feeds. One
        yield is one run of one feed, as with `shares`, and so is the rest: the loaded session, the reference, which
        groups are not run. ``total`` grows when the second round begins.

        Args:
            known: What was measured before, by group: it is neither measured nor yielded again.
            order: Groups to measure, most suspicious first; all by default.
            few: How many feeds the ranking is taken on, at least one.
            top: How many groups of each ranking are measured on all feeds.
            owns: Whether all-but-this is measured; only-this is half the runs, and what a search ranks by.
        """
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        names = list(order) if order is not None else [group.name for group in self.network.groups]
        found = {name: known[name] for name in names if known and name in known}
        rounded = self._session(config)[0].feeds(config, ranges)  # held, so that weights are rounded once
        done = 0

        def measure(wanted: Sequence[str], on: Sequence[int]) -> Iterator[Partial]:
            nonlocal done
            samples = sum(self.samples.rows(index) for index in on)
            wanted = [name for name in wanted if name not in found or found[name].samples < samples]
            total, base = done + len(wanted), Verdict({})
            fp32 = config.with_groups(self.network.groups, Precision.FP32)
            for partial in self.verdict(config, ranges, on) if wanted and owns else ():
                base = partial.value
                yield Partial({}, done, total + 1)
            for name in wanted:
                group = self.network.group(name)
                impact = Impact(0.0, _worst_db(base), None, 0.0, samples)
                if self._matters(group, config):
                    kept = alone = Verdict({})
                    if owns:
                        for partial in self.verdict(config.with_groups([group], Precision.FP32), ranges, on):
                            kept = partial.value
                            yield Partial({}, done, total + 1)
                    only = fp32.with_groups([group], config.precision_of(group))
                    for partial in self.verdict(only, ranges, on):
                        alone = partial.value
                        if not partial.final:
                            yield Partial({}, done, total + 1)
                    impact = Impact(_owns(base, kept) if owns else math.nan, _worst_db(kept), _worst_db(alone),
                                    alone.energy, samples)
                found[name] = impact
                done += 1
                yield Partial({name: impact}, done, total + 1)

        yield from measure(names, indices[:max(1, few)])
        by_owns = sorted(names, key=lambda name: -found[name].owns)[:top] if owns else []
        by_energy = sorted(names, key=lambda name: -(found[name].energy or 0.0))[:top]
        yield from measure(list(dict.fromkeys((*by_owns, *by_energy))), indices)
        del rounded
        yield Partial({}, done + 1, done + 1)

    def _matters(self, group: Group, config: PrecisionConfig) -> bool:
        precision = config.precision_of(group)
        if precision is Precision.FP32:
            return False
        if precision is Precision.INT8:
            return True
        for name in group.layers:
            if not keeps_precision(self.network.layer(name)):
                return True
        for tensor in group.inputs:
            producer = self.network.producer.get(tensor)
            source = self.network.group_of(producer) if producer is not None else None
            if source is None:
                return True
            if surrounding(source, config.precision_of(source), config.other) is not precision:
                return True
        return False

    def raised(self, config: PrecisionConfig, ranges: Mapping[str, float], order: Sequence[str],
               feeds: Sequence[int] | None = None) -> Iterator[Partial]:
        """Yields the verdicts, in a tuple that grows, with the first 1, 2, ... groups of ``order`` raised to FP32."""
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        verdicts: tuple[Verdict, ...] = ()
        for name in order:
            config = config.with_groups([self.network.group(name)], Precision.FP32)
            for partial in self.verdict(config, ranges, indices):
                if partial.final:
                    verdicts += (partial.value,)
                yield Partial(verdicts, len(verdicts), len(order))

    # -- errors at the groups -----------------------------------------------------------------------------------

    def layers(self, configs: Mapping[str, PrecisionConfig], ranges: Mapping[str, float], *, isolated: bool = True,
               feeds: Sequence[int] | None = None) -> Iterator[Partial]:
        """Yields ``{run: {group: GroupErrors}}`` after each run of each feed, for several configs in one loaded graph.

        The graph holds the reference, the gated network and, with ``isolated``, every group fed by the reference; only
        sums leave it.
        """
        indices = list(range(len(self.samples)) if feeds is None else feeds)
        offer = Offer.of((), ())
        for config in configs.values():
            offer |= Offer.needed(self.network, config)
        gated = lower_gated(self.network, floats=offer.floats, others=offer.others, outputs=self._tensors[:1],
                            reference=True, isolated=isolated)
        fp16 = any(self._concerns_fp16(config) for config in configs.values())
        sums = {run: {kind: [Sums() for _ in gated.measured] for kind in ("accumulated", "isolated")}
                for run in configs}
        errors: dict[str, dict[str, GroupErrors]] = {}
        fetch = [name for name in (gated.accumulated, gated.isolated) if name is not None]
        self.sessions += 1
        with self.backend.load(gated.model, lean=True) as runner:
            fed = {run: gated.feeds(config, ranges) for run, config in configs.items()}
            done, total = 0, len(indices) * len(configs)
            for index in indices:
                feed = self.samples.feed(index)
                counts = None  # of the reference, which all runs share
                for run, config in configs.items():
                    counting = {gated.counting: np.array(counts is None and fp16)}
                    result = runner.run({**feed, **fed[run], **counting}, fetch)
                    for kind, name in (("accumulated", gated.accumulated), ("isolated", gated.isolated)):
                        if name is not None:
                            table = result[name]
                            if counts is None:
                                counts = table[:, _COUNTS]
                            table[:, _COUNTS] = counts
                            for pooled, row in zip(sums[run][kind], table, strict=True):
                                pooled.merge(dict(zip(SUMS, row, strict=True)))
                    done += 1
                    errors[run] = self._group_errors(config, gated.measured, sums[run])
                    yield Partial(dict(errors), done, total)

    def _group_errors(self, config: PrecisionConfig, names: Sequence[str],
                      sums: Mapping[str, Sequence[Sums]]) -> dict[str, GroupErrors]:
        result, fp16 = {}, self._concerns_fp16(config)
        for position, name in enumerate(names):
            group = self.network.group(name)
            precision = config.precision_of(group)
            accumulated, alone = sums["accumulated"][position], sums["isolated"][position]
            isolated = alone.errors() if alone.count else None
            result[name] = GroupErrors(
                precision, accumulated.errors(), isolated, accumulated.ref_max or None,
                _warning(surrounding(group, precision, config.other), accumulated, isolated),
                int(accumulated.fp16_over) if fp16 else None, int(accumulated.fp16_under) if fp16 else None)
        return result

    def _concerns_fp16(self, config: PrecisionConfig) -> bool:
        """Whether what FP16 cannot hold is worth a look: not where a config takes BF16 in its place."""
        asked = {*config.assignment(self.network).values(), config.other}
        return Precision.FP16 in asked or Precision.BF16 not in asked


UNDERFLOW_SHARE = 0.05
"""Underflow is worth a word where more than this share of a tensor's values is lost."""


def _warning(around: Precision, sums: Sums, isolated: Errors | None) -> str:
    if around is Precision.FP16 and sums.ref_max > FP16_MAX:
        lost = f": {isolated.inf + isolated.nan} Inf or NaN arise here" if isolated is not None and isolated.bad else ""
        times = f" ({sums.fp16_over:,.0f} values)" if sums.fp16_over else ""
        return f"max {sums.ref_max:.1e} exceeds FP16's {FP16_MAX:.0f}{times}{lost}"
    if around is Precision.FP16 and 0 < sums.ref_max < FP16_LEAST_NORMAL:
        return f"max {sums.ref_max:.1e} lies below FP16's least normal {FP16_LEAST_NORMAL:.1e}"
    if around is Precision.FP16 and sums.fp16_under > UNDERFLOW_SHARE * sums.count:
        return f"{100 * sums.fp16_under / sums.count:.0f} % underflow: below FP16's least magnitude {FP16_LEAST:.0e}"
    if isolated is not None and isolated.bad:
        return f"{isolated.nan} NaN and {isolated.inf} Inf arise here"
    return ""


def _worst_db(verdict: Verdict) -> float | None:
    return verdict.worst[1].errors.sqnr_db if verdict.worst is not None else None


def _owns(base: Verdict, raised: Verdict) -> float:
    before = base.energy if base.energy is not None else 0.0
    after = raised.energy if raised.energy is not None else 0.0
    if math.isinf(before):
        return 0.0 if math.isinf(after) else 1.0
    return (before - after) / before if before > 0 else 0.0


def comparable(value: object) -> np.ndarray:
    """An output as an array of fixed size: texts come as objects, a single one as a text."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return value
    return np.asarray(value, np.str_)


class Tally:
    """Pools the judged outputs of one run over feeds; see `Analysis.tally`."""

    def __init__(self, analysis: Analysis, feeds: Sequence[int], judged: Sequence[Judged]) -> None:
        self.analysis = analysis
        self.judged = tuple(judged)
        self.sums = {one.name: Sums() for one in judged if one.kind != INTEGER}
        self.differ = {one.name: [0, 0] for one in judged if one.kind == INTEGER}
        self.worst: dict[str, tuple[int, float]] = {}
        self.kept: list[Mapping[str, np.ndarray]] = []
        self.indices: list[int] = []
        self.samples = 0
        self.agreed = 0
        self.total = sum(analysis.samples.rows(index) for index in feeds)

    def add(self, index: int, test: Mapping[str, np.ndarray]) -> None:
        """Adds what a run yields for one feed.

        Raises:
            TrtTuiError: a judged float tensor has another shape than in FP32.
        """
        rows = self.analysis.samples.rows(index)
        reference = self.analysis.reference(index)
        for one in self.judged:
            expected, got = take(reference[one.tensor], one), take(test[one.tensor], one)
            if expected.shape != got.shape:
                if one.kind == INTEGER:
                    self.differ[one.name][0] += expected.size
                    self.differ[one.name][1] += expected.size
                    continue
                raise TrtTuiError(f"{one.name} changed its shape", f"{expected.shape} in FP32, {got.shape} here",
                                  "Judge a tensor before the operator that selects values, with --judge.")
            if one.kind == INTEGER:
                self.differ[one.name][0] += int(np.count_nonzero(expected != got))
                self.differ[one.name][1] += expected.size
                continue
            self.sums[one.name].add(expected, got)
            if expected.ndim and len(expected) == rows:
                each = metrics.sample_sqnr_db(expected, got)
                lowest = int(np.argmin(np.where(np.isnan(each), np.inf, each)))
                if each[lowest] < self.worst.get(one.name, (None, math.inf))[1]:
                    self.worst[one.name] = (self.samples + lowest, float(each[lowest]))
            if one is self.analysis.classifier:
                top, now = expected.reshape(rows, -1).argmax(1), got.reshape(rows, -1).argmax(1)
                self.agreed += int(np.count_nonzero(top == now))
        if self.analysis.metric is not None:
            self.kept.append({name: test[name] for name in tensor_outputs(self.analysis.network)})
            self.indices.append(index)
        self.samples += rows

    def verdict(self, with_metric: bool = True) -> Verdict:
        """What is pooled so far.

        Raises:
            InputError: a judged slice takes nothing of any sample, or the metric fails.
        """
        outputs = {}
        for one in self.judged:
            if one.kind == INTEGER:
                differ, count = self.differ[one.name]
                outputs[one.name] = OutputErrors(Errors(mismatch=differ / count if count else 0.0, exact=differ == 0))
                continue
            if self.samples == self.total and not self.sums[one.name].count:
                raise InputError(f"{one.name} takes nothing of what the network yields", "", "Judge another slice.")
            index, worst = self.worst.get(one.name, (None, math.inf))
            outputs[one.name] = OutputErrors(self.sums[one.name].errors(), index,
                                             worst if math.isfinite(worst) else None)
        metric = self._metric() if with_metric and self.kept else {}
        agreement = self.agreed / self.samples if self.analysis.classifier is not None and self.samples else None
        noise = [sums.noise for sums in self.sums.values()] or [one.errors.mismatch for one in outputs.values()]
        return Verdict(outputs, metric, agreement, self.samples, self.total, sum(noise) if noise else None)

    def _metric(self) -> dict[str, float]:
        try:
            return self.analysis.score(self.kept, self.indices)
        except InputError:
            # A metric cannot be asked to bear NaN and Inf: the run is broken, which the outputs say.
            if all(np.isfinite(array).all() for one in self.kept for array in one.values() if array.dtype.kind != "U"):
                raise
            return {}


class _Spool:
    """Arrays by feed, in memory up to `REFERENCE_BYTES` and in an unnamed file beyond."""

    def __init__(self) -> None:
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._places: dict[int, dict[str, int]] = {}
        self._file = None
        self._held = 0

    def __contains__(self, index: int) -> bool:
        return index in self._arrays or index in self._places

    def put(self, index: int, arrays: Mapping[str, np.ndarray]) -> None:
        size = sum(array.nbytes for array in arrays.values())
        if self._held + size <= REFERENCE_BYTES:
            self._arrays[index] = dict(arrays)
            self._held += size
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="trt-tui-")
        places = {}
        self._file.seek(0, 2)
        for name, array in arrays.items():
            places[name] = self._file.tell()
            np.lib.format.write_array(self._file, np.ascontiguousarray(array), allow_pickle=False)
        self._places[index] = places

    def get(self, index: int) -> dict[str, np.ndarray]:
        if index in self._arrays:
            return self._arrays[index]
        result = {}
        for name, place in self._places[index].items():
            self._file.seek(place)
            result[name] = np.lib.format.read_array(self._file, allow_pickle=False)
        return result

    def close(self) -> None:
        self._arrays.clear()
        self._places.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held = 0
