"""Errors at the groups, accumulated and isolated: one graph holds both networks, and only sums leave it."""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.core.hands import Alone, Hands, Here
from trt_tui.core.lowering.gated.lower import lower_gated
from trt_tui.core.lowering.gated.sums import SUMS
from trt_tui.core.lowering.rules import Offer, surrounding
from trt_tui.core.measure.analysis import Analysis, Measured, Partial
from trt_tui.core.measure.comparison import Errors, GroupErrors
from trt_tui.core.measure.coordinates import coordinate_warnings, sample_shapes, with_coordinates
from trt_tui.core.measure.forms import Forms
from trt_tui.core.measure.fp16_range import LargeValue, RangeState, find_large_values, headroom_text, largest_inside
from trt_tui.core.measure.magnitudes import Magnitudes
from trt_tui.core.measure.masks import common_mask, kept_rows
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FP16_LEAST, FP16_LEAST_NORMAL, FP16_MAX, Precision
from trt_tui.errors import OutOfMemoryError
from trt_tui.words import number, percent

_LARGEST = [number for number, name in enumerate(SUMS) if name.endswith("_max")]
_COUNTS = [SUMS.index("fp16_over"), SUMS.index("fp16_under")]

LOSSY_DB = 40.0
"""A group in FP16 that loses more by itself has a cause worth naming: one rounding leaves 60 to 75 dB."""

UNDERFLOW_SHARE = 0.05
"""Underflow is reported if more than this share of a tensor's values is lost."""


def measure_layers(analysis: Analysis, configs: Mapping[str, PrecisionConfig], ranges: Mapping[str, float], *,
                   isolated: bool = True, feeds: Sequence[int] | None = None, hands: Hands[Measured] | None = None
                   ) -> Iterator[Partial[dict[str, dict[str, GroupErrors]]]]:
    """Yields ``{run: {group: GroupErrors}}`` after each run of each feed, for several configs in one loaded graph.

    Nothing is yielded where no group can be simulated.

    The graph holds the reference, the gated network and, with ``isolated``, every group fed by the reference; only
    sums leave it. Where the judged outputs have one mask, what it leaves out does not count at those groups whose last
    tensor has its axes; see `trt_tui.core.measure.masks.axes_of_mask`.

    Args:
        hands: Who runs the feeds; this process by default. While nothing is known it yields the same again.
    """
    network, indices = analysis.network, analysis.indices(feeds)
    if all(group.tail in network.behind for group in network.groups):
        return
    hands = hands if hands is not None else Here(Alone(analysis))
    fp16 = any(_concerns_fp16(network, config) for config in configs.values())
    if fp16:
        for _ in analysis.measure_magnitudes(indices, hands):
            pass  # known already where the caller went step by step
    magnitudes = analysis.magnitudes(indices) or Magnitudes()
    coordinates = {run: coordinate_warnings(network, config, magnitudes.tensors, lambda: sample_shapes(analysis))
                   for run, config in configs.items()}
    errand = _OfFeed(configs, ranges, analysis.padded if common_mask(analysis.judged) else {}, isolated, fp16)
    errors: dict[str, dict[str, GroupErrors]] = {}
    sums: dict[str, dict[str, list[Sums]]] = {}
    found: dict[int, _Found] = {}
    waiting, done, total = list(indices), 0, len(indices) * len(configs)
    try:
        for one in hands.work(errand, indices):
            if one is None:
                yield Partial(dict(errors), done, total)
                continue
            found[one[0]] = one[1]
            while waiting and waiting[0] in found:  # sums are taken in the order of the feeds, whoever was first
                measured, tables = found.pop(waiting.pop(0))
                for (run, config), taken in zip(configs.items(), tables, strict=True):
                    pooled = sums.setdefault(run, {kind: [Sums() for _ in measured]
                                                   for kind in ("accumulated", "isolated")})
                    for kind, table in taken.items():
                        for own, row in zip(pooled[kind], table, strict=True):
                            own.merge(dict(zip(SUMS, row, strict=True)))
                    done += 1
                    errors[run] = with_coordinates(_group_errors(network, config, measured, pooled, magnitudes),
                                                   coordinates[run])
                    yield Partial(dict(errors), done, total)
    finally:
        errand.close()


_Found = tuple[Sequence[str], list[dict[str, np.ndarray]]]
"""The groups in the order of rows, and the tables of each run."""


class _OfFeed:
    """An errand: the tables of each run for a feed."""

    def __init__(self, configs: Mapping[str, PrecisionConfig], ranges: Mapping[str, float],
                 padded: Mapping[str, tuple[bool, ...]], isolated: bool, fp16: bool) -> None:
        self._configs, self._ranges, self._padded = dict(configs), ranges, dict(padded)
        self._isolated, self._fp16 = isolated, fp16
        self._tables: _Tables | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}

    def words(self, item: int) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the errors at the groups on feed {item}"

    def do(self, subject: Measured, item: int) -> Generator[None, None, _Found]:
        """See `trt_tui.core.hands.Errand`."""
        analysis, found = subject.analysis, []
        if self._tables is None:
            offer = Offer.of((), ())
            for config in self._configs.values():
                offer |= Offer.needed(analysis.network, config)
            self._tables = _Tables(analysis, offer, self._configs, self._ranges, self._padded, self._isolated)
        feed = analysis.samples.feed(item)
        if self._padded:
            mask = common_mask(analysis.judged)
            feed = {**feed, **self._tables.counted(kept_rows(mask, analysis.samples, item))}
        counts: np.ndarray | None = None  # of the reference, which all runs share
        for run in self._configs:
            taken = self._tables.taken(run, feed, counting=counts is None and self._fp16)
            for table in taken.values():
                if counts is None:
                    counts = table[:, _COUNTS]
                table[:, _COUNTS] = counts
            found.append(taken)
            yield
        return tuple(self._tables.measured), found

    def close(self) -> None:
        """Frees the session."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None


class _Tables:
    """The graph that takes sums, in the form that goes with the backend.

    On a device gates are data, until sums are not finite, which that form does not tell apart: from then on it is
    control flow there too.
    """

    def __init__(self, analysis: Analysis, offer: Offer, configs: Mapping[str, PrecisionConfig],
                 ranges: Mapping[str, float], padded: Mapping[str, tuple[bool, ...]], isolated: bool) -> None:
        self._analysis = analysis
        self._offer = offer
        self._configs, self._ranges = configs, ranges
        self._padded, self._isolated = padded, isolated
        self._forms = Forms(analysis.backend, analysis.samples, "errors at the groups", analysis.network)
        self._finite = True
        self._load()

    def _load(self) -> None:
        analysis, offer = self._analysis, self._offer
        self._gated = gated = lower_gated(
            analysis.network, floats=offer.floats, others=offer.others, codes=offer.codes, constants=offer.constants,
            operators=offer.operators, outputs=analysis.tensors[:1], reference=True, isolated=self._isolated,
            padded=self._padded, data=self._data)
        analysis.sessions += 1
        joins = {name: _pooled for name in (gated.accumulated, gated.isolated) if name is not None}
        try:
            self._runner = self._forms.load(gated, None, data=self._data, more=[*gated.present.values()],
                                             joins=joins, few=True)
        except OutOfMemoryError:
            if not self._forms.lower():
                raise
            self._load()
            return
        self._fed = {run: gated.feeds(config, self._ranges) for run, config in self._configs.items()}

    @property
    def _data(self) -> bool:
        return self._forms.data and self._finite

    @property
    def measured(self) -> Sequence[str]:
        """Groups in the order of rows."""
        return self._gated.measured

    def counted(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """See `trt_tui.core.lowering.gated.gated.Gated.counted`."""
        return self._gated.counted(mask)

    def taken(self, run: str, feed: Mapping[str, np.ndarray], *, counting: bool) -> dict[str, np.ndarray]:
        """The tables of a run for a feed, "accumulated" and maybe "isolated"."""
        gated, more = self._gated, {}
        if gated.counting is not None:
            more[gated.counting] = np.array(counting)
        names = {kind: name for kind, name in (("accumulated", gated.accumulated), ("isolated", gated.isolated))
                 if name is not None}
        try:
            result = self._runner.run({**feed, **self._fed[run], **more}, list(names.values()))
            tables = {kind: result[name] for kind, name in names.items()}
            if not self._data or all(np.isfinite(table).all() for table in tables.values()):
                return tables
        except OutOfMemoryError:
            self._runner.close()
            if not self._forms.lower():
                raise
        else:
            self._runner.close()
            self._finite = False
        self._load()
        return self.taken(run, feed, counting=counting)

    def close(self) -> None:
        """Frees the session."""
        self._runner.close()


def _pooled(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The table of a feed from those of its portions: `SUMS` add up, largest magnitudes aside."""
    whole: np.ndarray = np.sum(tables, axis=0)
    whole[:, _LARGEST] = np.max(tables, axis=0)[:, _LARGEST]
    return whole


def _group_errors(network: Network, config: PrecisionConfig, names: Sequence[str],
                  sums: Mapping[str, Sequence[Sums]], magnitudes: Magnitudes) -> dict[str, GroupErrors]:
    result, fp16 = {}, _concerns_fp16(network, config)
    large_values = find_large_values(network, config, magnitudes)
    for position, name in enumerate(names):
        group = network.group(name)
        precision = config.precision_of(group)
        accumulated, alone = sums["accumulated"][position], sums["isolated"][position]
        isolated = alone.errors() if alone.count else None
        largest = largest_inside(network, config, group, magnitudes) if fp16 else None
        lossy = isolated is not None and (isolated.bad or not isolated.exact and (isolated.sqnr_db or 0) < LOSSY_DB)
        said = headroom_text(network, config, group, largest, bool(lossy))
        large = large_values.get(name)
        result[name] = GroupErrors(
            precision, accumulated.errors(), isolated, accumulated.ref_max or None,
            _warning(surrounding(group, precision, config.other), accumulated, isolated, said,
                     Precision.BF16 in group.allowed, large),
            int(accumulated.fp16_over) if fp16 else None, int(accumulated.fp16_under) if fp16 else None,
            largest.amax if largest is not None else None, largest.layer if largest is not None else "",
            large.state.value if large is not None else RangeState.SAFE.value if fp16 else "")
    return result


def _concerns_fp16(network: Network, config: PrecisionConfig) -> bool:
    """Whether to count what FP16 cannot hold: not if a config uses BF16 in its place."""
    asked = {*(one.values for one in config.assignment(network).values()), config.other}
    return Precision.FP16 in asked or Precision.BF16 not in asked


def _warning(around: Precision, sums: Sums, isolated: Errors | None, said: str, bf16: bool, large: LargeValue | None
             ) -> str:
    """What FP16 does to a group's values in words, or what arises there.

    Args:
        said: Of what lies before its last tensor.
        bf16: Whether the group can run in BF16.
        large: The value that FP16 rounds to infinity, if there is one.
    """
    spare = "; BF16 has the range of FP32" if bf16 else ""
    finite = math.isfinite(sums.ref_max)  # infinities are a mask's, which FP16 holds
    if around is Precision.FP16 and sums.ref_max > FP16_MAX and (finite or sums.fp16_over):
        lost = f": {isolated.inf + isolated.nan} Inf or NaN arise here" if isolated is not None and isolated.bad else ""
        times = f" ({sums.fp16_over:,.0f} values)" if sums.fp16_over else ""
        said = f"max {number(sums.ref_max, 2)} exceeds" if finite else "beside infinities values exceed"
        return f"{said} FP16's {FP16_MAX:.0f}{times}{lost}{spare}"
    if large is not None and not said:
        said = large.text + spare
    if around is Precision.FP16 and said:
        arise = f"{isolated.nan} NaN and {isolated.inf} Inf arise here: " if isolated and isolated.bad else ""
        state = f"{large.state.value} in FP16: " if large is not None and not arise else ""
        return arise + state + said
    if around is Precision.FP16 and 0 < sums.ref_max < FP16_LEAST_NORMAL:
        return f"max {number(sums.ref_max, 2)} is below FP16's smallest normal {number(FP16_LEAST_NORMAL)}{spare}"
    if around is Precision.FP16 and sums.fp16_under > UNDERFLOW_SHARE * sums.count:
        return f"{percent(sums.fp16_under / sums.count)} underflow: below FP16's smallest value " \
               f"{number(FP16_LEAST)}{spare}"
    if isolated is not None and isolated.bad:
        return f"{isolated.nan} NaN and {isolated.inf} Inf arise here"
    return ""
