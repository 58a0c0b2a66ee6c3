"""What the rows can be ordered by: each column of the list."""

import math
from collections.abc import Callable, Mapping
from enum import Enum

from trt_tui.core.network.layers import Group
from trt_tui.tui.state.built import DIFFERS
from trt_tui.tui.state.figures import Figures


class Column(Enum):
    """A column, by its name in words."""

    LAYER = "network order"
    OPERATOR = "operator"
    ASKED = "precision"
    MADE = "engine"
    SHARE = "worst first"
    FLIP = "figure if flipped"
    COST = "cost"

    @property
    def sums(self) -> bool:
        """Whether a scope weighs what its groups weigh together, rather than as much as the heaviest."""
        return self in (Column.SHARE, Column.COST)


def weights_by(found: Figures, column: Column) -> dict[str, float]:
    """What each group weighs in the order of a column, the heaviest first; groups that weigh the same stand as in the
    network, and those that have nothing in the column weigh nothing."""
    groups = found.model.outline.groups
    if column is Column.SHARE:
        return found.weights
    if column is Column.COST:
        costs = found.times or {name: float(macs) for name, macs in found.model.macs.items() if macs is not None}
        return {name: cost for name, cost in costs.items() if cost > 0}
    if column is Column.LAYER:
        return {}
    keys: dict[Column, Callable[[Group], tuple[object, ...] | None]] = {
        Column.OPERATOR: lambda group: (group.operator.lower(),),
        Column.ASKED: lambda group: (-group.rank(found.asked(group)), group.label(found.asked(group))),
        Column.MADE: lambda group: _made_key(found.made_cell(group)[0]),
        Column.FLIP: lambda group: None if (margin := found.flip([group]).margin) is None else (-margin,)}
    keyed = {group.name: key for group in groups if (key := keys[column](group)) is not None}
    places = {key: place for place, key in enumerate(sorted(set(keyed.values())))}
    return {name: float(len(places) - places[key]) for name, key in keyed.items()}


def _made_key(text: str) -> tuple[bool, str] | None:
    """What runs otherwise than asked stands first."""
    return (not text.startswith(DIFFERS), text) if text else None


def in_order(names: list[str], weights: Mapping[str, float]) -> list[str]:
    """Names of groups by weight."""
    return sorted(names, key=lambda name: -weights.get(name, -math.inf))
