"""The constants of a network as a config has them: scaled channels, corrected biases."""

from collections.abc import Hashable, MutableMapping

import numpy as np

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.moves.move import Change
from trt_tui.core.network.constants import largest
from trt_tui.core.network.free import Port
from trt_tui.core.network.layers import Site
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

_Made = tuple[Hashable, Change]
"""A change, and what two of them that do the same have in common."""


class Folds:
    """What the moves of a config make of constants. Nothing is computed before it is asked for.

    Args:
        amax: Largest magnitudes that are known from before, by what they are of; more are added.
    """

    def __init__(self, network: Network, config: PrecisionConfig,
                 amax: MutableMapping[Hashable, np.ndarray] | None = None) -> None:
        self.network = network
        self._amax = {} if amax is None else amax
        self._changes: dict[Port, list[_Made]] = {}
        for kind, of_kind in KINDS.items():
            for target, move in config.of(of_kind).items() if of_kind.folding else ():
                for port, change in move.folds(network, target, config).items():
                    self._changes.setdefault(port, []).append(((kind, target, move.decides), change))

    @property
    def ports(self) -> tuple[Port, ...]:
        """The layer inputs whose constants are changed."""
        return tuple(self._changes)

    def key(self, port: Port) -> Hashable:
        """What a changed constant goes by; None for one that is the network's own."""
        return tuple(key for key, _ in self._changes[port]) if port in self._changes else None

    def constant(self, port: Port) -> np.ndarray | None:
        """The constant that a layer reads, float32; None where it has no such input."""
        layer, index = port
        read = self.network.layer(layer).inputs
        array = self.network.constant(read[index]) if index < len(read) and read[index] else None
        for _, change in self._changes.get(port, ()):
            array = change.apply(array)
        return array

    def amax(self, site: Site, axis: int | None, block: int | None) -> np.ndarray:
        """The largest magnitude of a weight, float32; see `trt_tui.core.network.constants.Constants.amax`."""
        port = site.layer, site.index
        if port not in self._changes:
            return self.network.constant_amax(site.tensor, axis, block)
        key = (port, axis, block, self.key(port))
        if key not in self._amax:
            array = self.constant(port)
            assert array is not None  # a weight
            self._amax[key] = largest(array, axis, block)
        return self._amax[key]


def refuse_on_given(network: Network, config: PrecisionConfig) -> None:
    """Refuses moves that change layers which are as in the file.

    Raises:
        InputError: names the move and the layer.
    """
    for (kind, target), move in config.moves.items():
        if move.rewrites:
            layers = [target]
        else:
            layers = [layer for layer, _ in move.folds(network, target, config)] if move.folding else []
        for group in filter(None, map(network.group_of, layers)):
            if config.precision_of(group) is Precision.FILE and group.given is not None:
                nearest = group.given.stands_for.label
                raise InputError(f"{group.name} is as in the file, and {KINDS[kind].column} on {target} changes it",
                                 "what is as in the file is written back as it is",
                                 f"Give it {nearest}, which comes nearest to what the file has, or take that change "
                                 "back.")


def folds_anything(config: PrecisionConfig) -> bool:
    """Whether a config changes constants."""
    return any(move.folding for move in config.moves.values())


def rewritten(config: PrecisionConfig) -> frozenset[str]:
    """The groups whose normalisation a config writes as the operator."""
    return frozenset(target for (_, target), move in config.moves.items() if move.rewrites)
