"""Moves that cost nothing at run time, made from what the calibrating samples hold: factors, shifts of biases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.calibration.not_finite import explained
from trt_tui.core.calibration.sweep import MEMORY_LIMIT, Calibrating, OnRun, sweep
from trt_tui.core.data.samples import Samples
from trt_tui.core.hands import Hands
from trt_tui.core.lowering import rules
from trt_tui.core.lowering.folds import Folds
from trt_tui.core.moves import smooth, vectors
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.offers import no_rewrite
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import DEFAULT_STRENGTH, Smooth
from trt_tui.core.network.layers import Group, Outline, Site
from trt_tui.core.network.network import Network
from trt_tui.core.runner import Backend


def rewrites(network: Network, groups: Iterable[Group], reason: str = "user") -> dict[str, Rewrite]:
    """The operators that can stand for normalisations, by group."""
    return {group.name: Rewrite(network.free.norms[group.name].operator, reason)  # type: ignore[arg-type]
            for group in groups if not no_rewrite(network, group)}


# -- scaled channels --------------------------------------------------------------------------------------------------


@dataclass
class Largest:
    """Collects the largest magnitude of each index of the last axis."""

    found: np.ndarray | None = None

    def add(self, array: np.ndarray) -> None:
        """Takes a float array with a last axis of one size; raises ValueError for NaN or an infinity."""
        largest = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0, initial=0.0)
        if not np.isfinite(largest).all():
            raise ValueError("NaN or an infinity")
        self.found = largest if self.found is None else np.maximum(self.found, largest)

    def merge(self, later: Largest) -> None:
        """Takes what another found in later feeds."""
        if later.found is not None:
            self.found = later.found if self.found is None else np.maximum(self.found, later.found)


def smoothings(network: Network, norms: Iterable[str], samples: Samples, backend: Backend, *,
               strength: float = DEFAULT_STRENGTH, reason: str = "user",
               known: MutableMapping[str, np.ndarray] | None = None, progress: OnRun | None = None,
               hands: Hands[Calibrating] | None = None) -> dict[str, Smooth]:
    """SmoothQuant for normalisations, by their groups.

    Args:
        norms: Groups whose normalisation can be smoothed.
        strength: The exponent; see `trt_tui.core.moves.smooth`.
        known: Largest magnitudes of channels by tensor, those that are known; more are added.
        hands: Who runs the samples; this process by default.

    Raises:
        InputError: a tensor holds NaN or an infinity, or the data cannot be read.
    """
    known = {} if known is None else known
    wanted = {name: network.free.norms[name] for name in norms}
    tensors = dict.fromkeys(tensor for norm in wanted.values()
                            for tensor in (norm.result, *(read.activation for read in norm.reads)))
    collectors = {tensor: Largest() for tensor in tensors if tensor not in known}
    with explained(network.model, samples, backend):
        sweep(network.model, collectors, samples, backend, progress, MEMORY_LIMIT, hands)
    known.update((tensor, one.found) for tensor, one in collectors.items() if one.found is not None)
    made = {}
    for name, norm in wanted.items():
        weight = np.zeros(norm.channels, np.float32)
        for read in norm.reads:
            np.maximum(weight, network.constant_amax(read.weight, read.axis), out=weight)
        factors = smooth.factors(known[norm.result], weight, strength)
        ranges = {read.activation: float((known[read.activation] / factors).max()) for read in norm.reads}
        made[name] = Smooth(strength, vectors.packed(factors), ranges, reason)
    return made


def with_smoothings(config: PrecisionConfig, network: Outline, made: Mapping[str, Smooth]) -> PrecisionConfig:
    """A config with channels scaled; ranges and corrections of what they feed go, which were measured without."""
    reads = [read for name in made for read in network.free.norms[name].reads]
    readers = {group.name for read in reads if (group := network.group_of(read.port[0])) is not None}
    config = config.without(RangeChoice, [read.activation for read in reads])
    return config.without(BiasCorrection, readers).with_moves(made)


# -- corrected biases -------------------------------------------------------------------------------------------------


@dataclass
class Means:
    """Collects the mean of each channel, as it is and as INT8 has it.

    Attributes:
        axis: The channels.
        step: The scale of INT8.
        factors: What the channels are divided by before.
    """

    axis: int
    step: float
    factors: np.ndarray | None = None
    exact: np.ndarray = field(default_factory=lambda: np.zeros(()))
    rounded: np.ndarray = field(default_factory=lambda: np.zeros(()))
    count: int = 0

    def add(self, array: np.ndarray) -> None:
        """Takes a float array; raises ValueError for NaN or an infinity."""
        axis = self.axis % array.ndim
        others = tuple(one for one in range(array.ndim) if one != axis)
        if self.factors is not None:
            array = array / self.factors
        codes = np.rint(array / np.float32(self.step))
        np.clip(codes, -128, 127, out=codes)
        self.exact = self.exact + array.sum(axis=others, dtype=np.float64)
        self.rounded = self.rounded + codes.sum(axis=others, dtype=np.float64) * self.step
        if not np.isfinite(self.exact).all():
            raise ValueError("NaN or an infinity")
        self.count += array.size // max(array.shape[axis], 1)

    def merge(self, later: Means) -> None:
        """Takes what another summed up of later feeds."""
        self.exact = self.exact + later.exact
        self.rounded = self.rounded + later.rounded
        self.count += later.count


def corrections(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], groups: Sequence[Group],
                samples: Samples, backend: Backend, *, reason: str = "user", progress: OnRun | None = None,
                hands: Hands[Calibrating] | None = None) -> dict[str, BiasCorrection]:
    """What takes back the mean error of INT8 layers of a config, by group: ``W·E[x] - W'·E[x']`` for each channel.

    Means are those of the FP32 network. Where a Conv pads, the edges, which see fewer values, count as the rest does.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        groups: Groups whose bias can be corrected; see
            `trt_tui.core.moves.offers.no_correction`.
        hands: Who runs the samples; this process by default.

    Raises:
        InputError: a range is missing, a tensor holds NaN or an infinity, or the data cannot be read.
    """
    folds = Folds(network, config)
    rulings = rules.rule(network, config, ranges, constants=folds)
    factors = _factors(network, config)
    made: dict[str, BiasCorrection] = {}
    wanted: dict[str, tuple[Site, Site]] = {}
    collectors: dict[str, Means] = {}
    for group in groups:
        bias = network.free.biases[group.name]
        sites = [site for site in group.sites if site.layer == bias.layer]
        inputs, weights = ([site for site in sites if site.role == role] for role in ("input", "weight"))
        if len(inputs) != 1 or len(weights) != 1 or not rulings[group.name].scales:
            continue
        wanted[group.name] = inputs[0], weights[0]
        conv = network.layer(bias.layer).op_type == "Conv"
        step = float(rulings[group.name].scales[inputs[0]].values)
        collectors[group.name] = Means(1 if conv else -1, step, factors.get((bias.layer, 1)))
    by_tensor: dict[str, _Several] = {}
    for name, collector in collectors.items():
        by_tensor.setdefault(wanted[name][0].tensor, _Several([])).collectors.append(collector)
    with explained(network.model, samples, backend):
        sweep(network.model, by_tensor, samples, backend, progress, MEMORY_LIMIT, hands)
    for name, (_, site) in wanted.items():
        means = collectors[name]
        weight = folds.constant((site.layer, site.index))
        if weight is None or not means.count:
            continue
        rounded = rules.quantized_weight(weight, rulings[name].scales[site])
        layer = network.layer(site.layer)
        groups_of = network.node(layer.name).attributes.get_int("group", 1)
        shift = _product(weight, means.exact / means.count, site, groups_of) \
            - _product(rounded, means.rounded / means.count, site, groups_of)
        made[name] = BiasCorrection(vectors.packed(shift.astype(np.float32)), reason)
    return made


@dataclass
class _Several:
    """Hands a tensor to the collectors of all that read it."""

    collectors: list[Means]

    def add(self, array: np.ndarray) -> None:
        for one in self.collectors:
            one.add(array)

    def merge(self, later: _Several) -> None:
        for one, other in zip(self.collectors, later.collectors, strict=True):
            one.merge(other)


def _factors(network: Network, config: PrecisionConfig) -> dict[tuple[str, int], np.ndarray]:
    """What the channels are divided by that a weight meets, by the weight's port."""
    return {read.port: vectors.unpacked(move.factors) for name, move in config.of(Smooth).items()
            for read in network.free.norms[name].reads}


def _product(weight: np.ndarray, mean: np.ndarray, site: Site, groups: int) -> np.ndarray:
    """What a weight makes of the mean of its input, ``(output channels,)``."""
    if weight.ndim == 2:
        return np.asarray((weight if site.axis == 0 else weight.T) @ mean)
    taps = weight.sum(axis=tuple(range(2, weight.ndim)), dtype=np.float64)  # (outputs, inputs of a group)
    per_group = mean.reshape(groups, -1)
    outputs = len(taps) // groups
    return np.concatenate([taps[g * outputs:(g + 1) * outputs] @ per_group[g] for g in range(groups)])

