"""What single groups do to the judged outputs: their shares, their impacts, and the worst ones raised together.

All of it runs on the loaded session of an `Analysis`; every function is a generator, as the methods there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.codes import CODES
from trt_tui.core.lowering.rules import keeps_precision, surrounding
from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.comparison import Share, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Impact(Share):
    """What one group does to the judged outputs: if it alone is raised (`Share`), and if it alone is lowered.

    ``owns`` is NaN if all-but-this was not asked for.

    Attributes:
        energy: The judged error (`Verdict.energy`) with this group alone as in the run and all others in FP32; infinite
            if that leads to NaN or Inf, 0 if the group changes no value, None if it was not measured.
        samples: How many samples it was measured on.
    """

    energy: float | None = None
    samples: int = 0


def measure_shares(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *,
                   order: Sequence[str] | None = None, feeds: Sequence[int] | None = None
                   ) -> Iterator[Partial[dict[str, Share]]]:
    """Yields ``{group: Share}`` of what was measured since the last yield: what a group owns of the judged error.

    It yields after each run of one feed, so most yields hold nothing new. Groups that already run in FP32, and those
    that only pass on values of their own precision, own nothing and are not run. If the config's judged error is not
    finite, a group that makes it finite owns all of it, any other group nothing.

    Args:
        order: Groups to measure, most suspicious first; all by default.
    """
    indices = analysis.indices(feeds)
    groups = [analysis.network.group(n) for n in order] if order is not None else list(analysis.network.groups)
    active = [group for group in groups if _matters(analysis.network, group, config)]
    base = Verdict({})
    for partial in analysis.verdict(config, ranges, indices):
        base = partial.value
        yield Partial({}, 0, len(active) or 1)
    resting = {group.name: Share(0.0, _worst_db(base)) for group in groups if group not in active}
    yield Partial(resting, 0 if active else 1, len(active) or 1)
    for done, group in enumerate(active, 1):
        raised = config.with_groups([group], Precision.FP32)
        verdict = Verdict({})
        for partial in analysis.verdict(raised, ranges, indices):
            verdict = partial.value
            if not partial.final:
                yield Partial({}, done - 1, len(active))
        yield Partial({group.name: Share(_owns(base, verdict), _worst_db(verdict))}, done, len(active))


def measure_impacts(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], *,
                    known: Mapping[str, Impact] | None = None, order: Sequence[str] | None = None,
                    feeds: Sequence[int] | None = None, few: int = 1, top: int = 16, owns: bool = True
                    ) -> Iterator[Partial[dict[str, Impact]]]:
    """Yields ``{group: Impact}`` of what was measured since the last yield: each group raised alone, and lowered alone.

    All groups are measured on the first ``few`` feeds, then the ``top`` ones of either ranking on all feeds. As with
    `measure_shares` it yields after each run of one feed, and leaves out the same groups. ``total`` grows when the
    second round begins.

    Args:
        known: What was measured before, by group: it is neither measured nor yielded again.
        order: Groups to measure, most suspicious first; all by default.
        few: On how many feeds the groups are ranked, at least one.
        top: How many groups of each ranking are measured on all feeds.
        owns: Whether all-but-this is measured too; only-this, by which a search ranks, takes half the runs.
    """
    indices = analysis.indices(feeds)
    names = list(order) if order is not None else [group.name for group in analysis.network.groups]
    found = {name: known[name] for name in names if known and name in known}
    rounded = analysis.feeds(config, ranges)  # held, so that weights are rounded once
    done = 0

    def measure(wanted: Sequence[str], on: Sequence[int]) -> Iterator[Partial[dict[str, Impact]]]:
        nonlocal done
        samples = sum(analysis.samples.rows(index) for index in on)
        wanted = [name for name in wanted if name not in found or found[name].samples < samples]
        total, base = done + len(wanted), Verdict({})
        fp32 = replace(config.with_groups(analysis.network.groups, Precision.FP32), tf32=False)
        for partial in analysis.verdict(config, ranges, on) if wanted and owns else ():
            base = partial.value
            yield Partial({}, done, total + 1)
        for name in wanted:
            group = analysis.network.group(name)
            impact = Impact(0.0, _worst_db(base), None, 0.0, samples)
            if _matters(analysis.network, group, config):
                kept = alone = Verdict({})
                if owns:
                    for partial in analysis.verdict(config.with_groups([group], Precision.FP32), ranges, on):
                        kept = partial.value
                        yield Partial({}, done, total + 1)
                only = fp32.with_groups([group], config.precision_of(group))
                for partial in analysis.verdict(only, ranges, on):
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


def measure_cumulative(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                       order: Sequence[str], feeds: Sequence[int] | None = None
                       ) -> Iterator[Partial[tuple[Verdict, ...]]]:
    """Yields a growing tuple: the verdicts with the first 1, 2, ... groups of ``order`` raised to FP32."""
    indices = analysis.indices(feeds)
    verdicts: tuple[Verdict, ...] = ()
    for name in order:
        config = config.with_groups([analysis.network.group(name)], Precision.FP32)
        for partial in analysis.verdict(config, ranges, indices):
            if partial.final:
                verdicts += (partial.value,)
            yield Partial(verdicts, len(verdicts), len(order))


def _matters(network: Network, group: Group, config: PrecisionConfig) -> bool:
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


def _worst_db(verdict: Verdict) -> float | None:
    return verdict.worst[1].errors.sqnr_db if verdict.worst is not None else None


def _owns(base: Verdict, raised: Verdict) -> float:
    before = base.energy if base.energy is not None else 0.0
    after = raised.energy if raised.energy is not None else 0.0
    if math.isinf(before):
        return 0.0 if math.isinf(after) else 1.0
    return (before - after) / before if before > 0 else 0.0
