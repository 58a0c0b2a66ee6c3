"""The calibration method of a whole network, as the ranges that a config gives to its tensors.

A config holds such a change as a range for each tensor, so that it is undone, saved, named and exported as any other.
"""

from collections import Counter

from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline


def network_method(config: PrecisionConfig, network: Outline) -> str:
    """Returns the calibration method whose ranges more than half of the tensors of a network have by choice.

    "" if there is none: a few tensors have ranges of their own, or none.
    """
    methods = Counter(choice.method for choice in config.ranges.values() if choice.method in RANGE_METHODS)
    method, count = methods.most_common(1)[0] if methods else ("", 0)
    return method if count > len(range_tensors(network)) / 2 else ""


def range_tensors(network: Outline) -> tuple[str, ...]:
    """Returns the tensors of a network that can have a range, each once, in network order."""
    return tuple(dict.fromkeys(site.tensor for group in network.groups for site in group.activations()))


def without_method(config: PrecisionConfig, network: Outline) -> PrecisionConfig:
    """Returns a config without the ranges of its `network_method`."""
    method = network_method(config, network)
    return config.without(RangeChoice, [tensor for tensor, choice in config.ranges.items() if choice.method == method])
