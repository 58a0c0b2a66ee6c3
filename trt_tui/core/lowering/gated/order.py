"""The order in which the gated branch is emitted: groups as a whole, each after everything it reads."""

from collections.abc import Iterable, Sequence

from trt_tui.core.network.layers import FusionGroup, Layer
from trt_tui.core.network.network import Network
from trt_tui.errors import TrtTuiError


def sort_by_dependency(network: Network) -> list[FusionGroup | Layer]:
    """Groups and loose layers, each after everything it reads.

    Raises:
        TrtTuiError: groups wait for each other.
    """
    units = {layer.name: network.find_group(layer.name) or layer for layer in network.layers}
    order: list[FusionGroup | Layer] = []
    begun: dict[str, FusionGroup | Layer] = {}
    placed: set[str] = set()
    for layer in network.layers:
        stack = [(units[layer.name], False)]
        while stack:
            unit, complete = stack.pop()
            if unit.name in placed:
                continue
            if complete:
                placed.add(unit.name)
                order.append(begun.pop(unit.name))
                continue
            if unit.name in begun:
                raise _cycle_error(network, list(begun)[list(begun).index(unit.name):])
            begun[unit.name] = unit
            stack.append((unit, True))
            stack.extend((units[name], False) for name in _list_layer_dependencies(network, unit))
    return order


def _list_layer_dependencies(network: Network, group_or_layer: FusionGroup | Layer) -> Iterable[str]:
    """Layers outside a unit that compute what it reads."""
    layer_names = (*group_or_layer.layers,
                   *group_or_layer.shape_layers) if isinstance(group_or_layer, FusionGroup) else (group_or_layer.name, )
    own = set(layer_names)
    for name in layer_names:
        for tensor in network.input_tensors(name):
            producer = network.producer.get(tensor)
            if producer is not None and producer not in own:
                yield producer


def _cycle_error(network: Network, group_names: Sequence[str]) -> TrtTuiError:
    return TrtTuiError(f"groups of {network.name} wait for each other",
                       " → ".join((*group_names, group_names[0])),
                       "This is a defect of trt-tui; please report it with the network's structure.")
