"""What the rows can be ordered by: each column of the list."""

import math
from collections.abc import Callable, Mapping
from enum import Enum

from trt_tui.core.network.layers import FusionGroup
from trt_tui.tui.state.engine_texts import OTHER_PRECISION_MARK
from trt_tui.tui.state.row_values import RowValues


class SortColumn(Enum):
    """A column, by its name in words."""

    LAYER = "network order"
    OPERATOR = "operator"
    PRECISION = "precision"
    ENGINE = "engine"
    SHARE = "worst first"
    TOGGLE = "figure if flipped"
    COST = "cost"

    @property
    def is_additive(self) -> bool:
        """Whether a scope weighs what its groups weigh together, rather than as much as the heaviest."""
        return self in (SortColumn.SHARE, SortColumn.COST)


def column_sort_weights(row_values: RowValues, column: SortColumn) -> dict[str, float]:
    """What each group weighs in the order of a column, the heaviest first; groups that weigh the same stand as in the
    network, and those that have nothing in the column weigh nothing."""
    groups = row_values.model.outline.groups
    if column is SortColumn.SHARE:
        return row_values.row_order_weights
    if column is SortColumn.COST:
        costs = row_values.group_times or {
            name: float(macs)
            for name, macs in row_values.model.group_macs.items()
            if macs is not None
        }
        return {name: cost for name, cost in costs.items() if cost > 0}
    if column is SortColumn.LAYER:
        return {}
    keys: dict[SortColumn, Callable[[FusionGroup], tuple[object, ...] | None]] = {
        SortColumn.OPERATOR: lambda group: (group.operator.lower(), ), SortColumn.PRECISION: lambda group:
        (-group.precision_rank(row_values.requested_precision(group)),
         group.precision_label(row_values.requested_precision(group))),
        SortColumn.ENGINE: lambda group: _engine_sort_key(row_values.group_engine_span(group)[0]),
        SortColumn.TOGGLE: lambda group: None
        if (margin := row_values.find_toggle([group]).margin) is None else (-margin, )
    }
    group_keys = {group.name: key for group in groups if (key := keys[column](group)) is not None}
    positions = {key: position for position, key in enumerate(sorted(set(group_keys.values())))}
    return {name: float(len(positions) - positions[key]) for name, key in group_keys.items()}


def _engine_sort_key(engine_text: str) -> tuple[bool, str] | None:
    """What runs otherwise than asked stands first."""
    return (not engine_text.startswith(OTHER_PRECISION_MARK), engine_text) if engine_text else None


def sort_by_weight(group_names: list[str], weights: Mapping[str, float]) -> list[str]:
    """Names of groups by weight."""
    return sorted(group_names, key=lambda name: -weights.get(name, -math.inf))
