"""The order in which the gated branch is emitted: groups as a whole, each after everything it reads."""

from collections.abc import Iterable, Sequence

from trt_tui.core.network.layers import Group, Layer
from trt_tui.core.network.network import Network
from trt_tui.errors import TrtTuiError


def in_reading_order(network: Network) -> list[Group | Layer]:
    """Groups and loose layers, each after everything it reads.

    Raises:
        TrtTuiError: groups wait for each other.
    """
    units = {layer.name: network.group_of(layer.name) or layer for layer in network.layers}
    order: list[Group | Layer] = []
    begun: dict[str, Group | Layer] = {}
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
                raise _cycle(network, list(begun)[list(begun).index(unit.name):])
            begun[unit.name] = unit
            stack.append((unit, True))
            stack.extend((units[name], False) for name in _waits_for(network, unit))
    return order


def _waits_for(network: Network, unit: Group | Layer) -> Iterable[str]:
    """Layers outside a unit that compute what it reads."""
    members = (*unit.layers, *unit.inner) if isinstance(unit, Group) else (unit.name,)
    own = set(members)
    for name in members:
        for tensor in network.reads(name):
            producer = network.producer.get(tensor)
            if producer is not None and producer not in own:
                yield producer


def _cycle(network: Network, names: Sequence[str]) -> TrtTuiError:
    return TrtTuiError(f"groups of {network.name} wait for each other",
                       " → ".join((*names, names[0])),
                       "This is a defect of trt-tui; please report it with the network's structure.")
