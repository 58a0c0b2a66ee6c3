"""The range method of a whole network, stored in a config as one range move for each tensor.

Because the change consists of moves, undo, saving, naming and export need no special case for it.
"""

from collections import Counter

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.network.layers import NetworkOutline


def find_network_range_method(config: PrecisionConfig, network: NetworkOutline) -> str:
    """Returns the range method of the range moves on more than half of the tensors of a network.

    "" if no method has so many tensors.
    """
    methods = Counter(choice.method for choice in config.range_moves.values() if choice.method in RANGE_METHODS)
    method, count = methods.most_common(1)[0] if methods else ("", 0)
    return method if count > len(list_range_tensors(network)) / 2 else ""


def list_range_tensors(network: NetworkOutline) -> tuple[str, ...]:
    """Returns the tensors of a network that can have a range, in network order without duplicates."""
    return tuple(dict.fromkeys(site.tensor for group in network.groups for site in group.activation_qdq_sites()))


def remove_network_range_method(config: PrecisionConfig, network: NetworkOutline) -> PrecisionConfig:
    """Returns a config without the range moves of its `find_network_range_method`."""
    method = find_network_range_method(config, network)
    return config.without_moves(RangeMove,
                                [tensor for tensor, choice in config.range_moves.items() if choice.method == method])
