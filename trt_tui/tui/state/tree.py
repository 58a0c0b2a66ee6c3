"""The rows of a network as plain data, and the order in which the layer list shows them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from trt_tui.core.engines.inspector import COMPUTE, EngineReport
from trt_tui.core.network.layer_tree import (
    BlockMatrix,
    GroupRow,
    OtherNodesRow,
    Row,
    Scope,
    UngroupedRow,
    build_scope_tree,
    find_repeated_blocks,
)
from trt_tui.core.network.layers import FusionGroup, NetworkOutline

NumberT = TypeVar("NumberT", int, float)


class View(Enum):
    """The kinds of list in the main pane: the tree of scopes, rows worst first, or the heat map of blocks."""

    TREE = "tree"
    WORST = "worst first"
    BLOCKS = "blocks"


SMALL_SHARES_KEY = "\0tail"
"""The key of the row that represents all groups with very small shares."""

MIN_FOLDED_ROWS = 3
"""The minimum number of rows that are folded into one row."""


@dataclass(frozen=True)
class SmallSharesRow:
    """A row of the worst-first view that represents all groups with very small shares.

    Attributes:
        names: The names of these groups.
    """

    names: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{len(self.names)} more"


@dataclass(frozen=True)
class VisibleRow:
    """A line of the layer list: a row of the tree at its depth, or a node below an opened row.

    Attributes:
        row: The row of the tree; None for a node below an opened group or below the row of other nodes.
        node: The name of that node.
    """

    key: str
    depth: int
    row: Row | SmallSharesRow | None
    node: str = ""
    is_opened: bool = False


class TreeModel:
    """The tree of rows of a network outline, with look-up tables for the screen. It does not change after construction.
    """

    def __init__(self, outline: NetworkOutline) -> None:
        self.outline = outline
        self.tree: Scope = build_scope_tree(outline.layers, outline.groups)
        self.blocks: BlockMatrix | None = find_repeated_blocks(self.tree)
        self.rows_by_group: dict[str, GroupRow] = {}
        self.ancestors: dict[str, tuple[Scope, ...]] = {}
        self.titles: dict[str, str] = {}
        self.group_rows: list[GroupRow] = []
        self.layer_rows: list[UngroupedRow] = []
        self.folded_row: OtherNodesRow | None = None
        self.scopes: list[Scope] = []
        stack: list[tuple[Row, tuple[Scope, ...]]] = [(row, ()) for row in reversed(self.tree.children)]
        while stack:
            row, outer_scopes = stack.pop()
            if isinstance(row, Scope):
                self.scopes.append(row)
                inner_scopes = (*outer_scopes, row)
                stack.extend((child, inner_scopes) for child in reversed(row.children))
            elif isinstance(row, GroupRow):
                self.group_rows.append(row)
                self.rows_by_group[row.group.name] = row
                self.ancestors[row.group.name] = outer_scopes
                self.titles[row.group.name] = "/".join((*(scope.label for scope in outer_scopes), row.label))
            elif isinstance(row, UngroupedRow):
                self.layer_rows.append(row)
            else:
                self.folded_row = row
        self.group_macs: dict[str, int | None] = {}
        for group in outline.groups:
            layer_macs = [macs for name in group.layers if (macs := outline.layer_by_name[name].macs) is not None]
            self.group_macs[group.name] = sum(layer_macs) if len(layer_macs) == len(group.layers) else None
        self.scope_macs = self.combine_by_scope({name: value or 0 for name, value in self.group_macs.items()})
        self.total_macs = sum(value or 0 for value in self.group_macs.values())
        self._cached_scope_times: tuple[EngineReport | None, dict[str, float]] = (None, {})

    def list_groups_of_row(self, row: Row | SmallSharesRow | None) -> tuple[FusionGroup, ...]:
        """Returns the fusion groups that a change on a row affects."""
        by_name = self.outline.group_by_name
        if isinstance(row, Scope):
            return tuple(by_name[name] for name in row.groups)
        return (row.group,) if isinstance(row, GroupRow) else ()

    def sum_scope_times(self, engine_report: EngineReport | None) -> Mapping[str, float]:
        """Returns the measured milliseconds of each scope by path: the engine layers whose groups are all in the scope.

        The result for the last report is cached.
        """
        if self._cached_scope_times[0] is not engine_report:
            group_of = self.outline.group_by_layer
            sums: dict[str, float] = {}
            for layer in engine_report.layers if engine_report is not None else ():
                if layer.kind != COMPUTE or layer.ms is None:
                    continue
                groups = {group_of[node].name for node in layer.network_layers if node in group_of}
                chains = [{scope.path for scope in self.ancestors[name]} for name in groups]
                for path in set.intersection(*chains) if chains else ():
                    sums[path] = sums.get(path, 0.0) + layer.ms
            self._cached_scope_times = (engine_report, sums)
        return self._cached_scope_times[1]

    def choose_opened_scopes(self, max_rows: int = 40) -> set[str]:
        """Returns the scopes to open at first: whole levels from the outermost, while at most ``max_rows`` rows are
        visible."""
        opened: set[str] = set()
        level_scopes = [row for row in self.tree.children if isinstance(row, Scope)]
        row_count = len(self.tree.children)
        while level_scopes:
            row_count += sum(len(scope.children) for scope in level_scopes)
            if row_count > max_rows:
                break
            opened.update(scope.path for scope in level_scopes)
            level_scopes = [child for scope in level_scopes for child in scope.children if isinstance(child, Scope)]
        return opened

    def get_row_name(self, visible_row: VisibleRow, full_names: bool = False) -> str:
        """Returns the name of a visible row.

        Args:
            full_names: If True, groups are named by their full path, for views without a tree.
        """
        row = visible_row.row
        if row is None:
            return visible_row.node
        return self.titles[row.group.name] if full_names and isinstance(row, GroupRow) else row.label

    def search_text(self, row: GroupRow) -> str:
        """Returns the text of a row in which a filter searches: its names, path and operator."""
        name = row.group.name
        return f"{self.titles[name]} {row.path} {name} {row.group.operator}"

    def combine_by_scope(self, values: Mapping[str, NumberT],
                         combine: Callable[[NumberT, NumberT], NumberT] = operator.add) -> dict[str, NumberT]:
        """Returns the value of each scope by path: by default the sum of the values of its groups."""
        combined: dict[str, NumberT] = {}
        for name, value in values.items():
            for scope in self.ancestors.get(name, ()):
                combined[scope.path] = combine(combined[scope.path], value) if scope.path in combined else value
        return combined

    def list_tree_rows(self, opened_paths: set[str], weights: Mapping[str, float] | None = None,
                       matching_groups: set[str] | None = None, is_additive: bool = True) -> list[VisibleRow]:
        """Returns the lines of the tree view. Siblings are sorted by weight, or in network order without weights.

        Args:
            matching_groups: The groups to list, with their scopes; None for all rows.
            is_additive: If True, the weight of a scope is the sum of its groups' weights, else their maximum.
        """
        weights = weights or {}
        sums = self.combine_by_scope(weights, operator.add if is_additive else max)
        allowed = {scope.path for name in matching_groups or () for scope in self.ancestors[name]}

        def sort_key(row: Row) -> float:
            if isinstance(row, Scope):
                return -sums.get(row.path, 0.0)
            if isinstance(row, GroupRow):
                return -weights.get(row.group.name, 0.0)
            return math.inf if isinstance(row, OtherNodesRow) else 0.0

        lines: list[VisibleRow] = []
        stack: list[tuple[Row, int]] = []

        def push_rows(rows: Sequence[Row], depth: int) -> None:
            if matching_groups is not None:
                rows = [row for row in rows
                        if (isinstance(row, Scope) and row.path in allowed)
                        or (isinstance(row, GroupRow) and row.group.name in matching_groups)]
            if weights:
                rows = sorted(rows, key=sort_key)
            stack.extend((row, depth) for row in reversed(rows))

        push_rows(self.tree.children, 0)
        while stack:
            row, depth = stack.pop()
            if isinstance(row, Scope):
                is_open = matching_groups is not None or row.path in opened_paths
                lines.append(VisibleRow(row.path, depth, row, is_opened=is_open))
                if is_open:
                    push_rows(row.children, depth + 1)
            else:
                lines.extend(self._list_leaf_rows(row, depth, opened_paths))
        return lines

    def list_worst_first_rows(
        self, opened_paths: set[str], weights: Mapping[str, float] | None, matching_groups: set[str] | None = None,
        leading_groups: Collection[str] = (), small_groups: Collection[str] = ()
    ) -> list[VisibleRow]:
        """Returns the lines of the worst-first view: all groups, heaviest first, then groups without a weight.

        Args:
            leading_groups: The names of groups that come before the heaviest: raised groups, which have no share.
            small_groups: The names of groups that one row represents, unless there are fewer than `MIN_FOLDED_ROWS`.
        """
        weights = weights or {}
        rows = [row for row in self.group_rows if matching_groups is None or row.group.name in matching_groups]
        rows.sort(key=lambda row: (row.group.name not in leading_groups, -weights.get(row.group.name, -math.inf)))
        folded = [row for row in rows if row.group.name in small_groups] if matching_groups is None else []
        folded = folded if len(folded) >= MIN_FOLDED_ROWS else []
        hidden = {row.group.name for row in folded}
        lines: list[VisibleRow] = []
        for row in rows:
            if row.group.name not in hidden:
                lines.extend(self._list_leaf_rows(row, 0, opened_paths))
        if folded:
            lines.append(
                VisibleRow(SMALL_SHARES_KEY, 0, SmallSharesRow(tuple(row.group.name for row in folded)),
                           is_opened=SMALL_SHARES_KEY in opened_paths))
            for row in folded if SMALL_SHARES_KEY in opened_paths else ():
                lines.extend(self._list_leaf_rows(row, 1, opened_paths))
        if matching_groups is None:
            for row in (*self.layer_rows, *((self.folded_row,) if self.folded_row else ())):
                lines.extend(self._list_leaf_rows(row, 0, opened_paths))
        return lines

    @staticmethod
    def _list_leaf_rows(row: GroupRow | UngroupedRow | OtherNodesRow, depth: int,
                        opened_paths: set[str]) -> Iterable[VisibleRow]:
        names: tuple[str, ...] = ()
        if isinstance(row, OtherNodesRow):
            names = row.layers
        elif isinstance(row, GroupRow) and len(row.group.layers) > 1:
            names = row.group.layers
        is_open = bool(names) and row.path in opened_paths
        yield VisibleRow(row.path, depth, row, is_opened=is_open)
        if is_open:
            for name in names:
                yield VisibleRow(f"{row.path}\0{name}", depth + 1, None, node=name)
