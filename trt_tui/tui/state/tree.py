"""The rows of a network as plain data, and which of them show in what order."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from trt_tui.core.engines.inspector import COMPUTE, EngineReport
from trt_tui.core.network.blocks import Blocks, blocks
from trt_tui.core.network.hierarchy import FoldedRow, GroupRow, LayerRow, Row, Scope, build_tree
from trt_tui.core.network.layers import Group, Outline


class View(Enum):
    """What the main pane lists."""

    TREE = "tree"
    WORST = "worst first"
    BLOCKS = "blocks"


TAIL = "\0tail"
"""The key of the row that stands for those that lose next to nothing."""

LEAST_FOLDED = 3
"""Fewer rows are not folded into one."""


@dataclass(frozen=True)
class Tail:
    """The row that stands for groups of next to no share, by name."""

    names: tuple[str, ...]

    @property
    def label(self) -> str:
        """What it is called."""
        return f"{len(self.names)} more"


@dataclass(frozen=True)
class VisibleRow:
    """One line of the list. ``row`` is None for a node of an opened group or of the folded row; ``node`` names it."""

    key: str
    depth: int
    row: Row | Tail | None
    node: str = ""
    opened: bool = False


class TreeModel:
    """The tree of an outline with the look-ups that the screen needs; it does not change after construction."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.tree: Scope = build_tree(outline.layers, outline.groups)
        self.blocks: Blocks | None = blocks(self.tree)
        self.rows: dict[str, GroupRow] = {}
        self.ancestors: dict[str, tuple[Scope, ...]] = {}
        self.titles: dict[str, str] = {}
        self.group_rows: list[GroupRow] = []
        self.layer_rows: list[LayerRow] = []
        self.folded: FoldedRow | None = None
        self.scopes: list[Scope] = []
        stack: list[tuple[Row, tuple[Scope, ...]]] = [(row, ()) for row in reversed(self.tree.children)]
        while stack:
            row, above = stack.pop()
            if isinstance(row, Scope):
                self.scopes.append(row)
                inner = (*above, row)
                stack.extend((child, inner) for child in reversed(row.children))
            elif isinstance(row, GroupRow):
                self.group_rows.append(row)
                self.rows[row.group.name] = row
                self.ancestors[row.group.name] = above
                self.titles[row.group.name] = "/".join((*(scope.label for scope in above), row.label))
            elif isinstance(row, LayerRow):
                self.layer_rows.append(row)
            else:
                self.folded = row
        self.macs: dict[str, int | None] = {}
        for group in outline.groups:
            known = [macs for name in group.layers if (macs := outline.layer_by_name[name].macs) is not None]
            self.macs[group.name] = sum(known) if len(known) == len(group.layers) else None
        self.scope_macs: dict[str, int] = {}
        for name, value in self.macs.items():
            for scope in self.ancestors[name]:
                self.scope_macs[scope.path] = self.scope_macs.get(scope.path, 0) + (value or 0)
        self.all_macs = sum(value or 0 for value in self.macs.values())
        self._timed: tuple[EngineReport | None, dict[str, float]] = (None, {})

    def groups_of(self, row: Row | Tail | None) -> tuple[Group, ...]:
        """The groups that a change on a row acts on."""
        by_name = self.outline.group_by_name
        if isinstance(row, Scope):
            return tuple(by_name[name] for name in row.groups)
        return (row.group,) if isinstance(row, GroupRow) else ()

    def scope_times(self, report: EngineReport | None) -> Mapping[str, float]:
        """Milliseconds of the engine layers that lie in a scope with all of their groups, by path; kept for the report
        asked last."""
        if self._timed[0] is not report:
            group_of = self.outline.group_by_layer
            sums: dict[str, float] = {}
            for layer in report.layers if report is not None else ():
                if layer.kind != COMPUTE or layer.ms is None:
                    continue
                groups = {group_of[node].name for node in layer.nodes if node in group_of}
                chains = [{scope.path for scope in self.ancestors[name]} for name in groups]
                for path in set.intersection(*chains) if chains else ():
                    sums[path] = sums.get(path, 0.0) + layer.ms
            self._timed = (report, sums)
        return self._timed[1]

    def first_open(self, most: int = 40) -> set[str]:
        """Scopes to open at first: whole levels from the outermost in, as long as at most ``most`` rows show."""
        opened: set[str] = set()
        level = [row for row in self.tree.children if isinstance(row, Scope)]
        shown = len(self.tree.children)
        while level:
            shown += sum(len(scope.children) for scope in level)
            if shown > most:
                break
            opened.update(scope.path for scope in level)
            level = [child for scope in level for child in scope.children if isinstance(child, Scope)]
        return opened

    def name_of(self, line: VisibleRow, full: bool = False) -> str:
        """Returns the name that a line begins with; ``full`` gives groups their path, for views that are no tree."""
        row = line.row
        if row is None:
            return line.node
        return self.titles[row.group.name] if full and isinstance(row, GroupRow) else row.label

    def words_of(self, row: GroupRow) -> str:
        """What a filter finds a row by: its names, path and operator."""
        name = row.group.name
        return f"{self.titles[name]} {row.path} {name} {row.group.operator}"

    def weights_of_scopes(self, weights: Mapping[str, float], summed: bool = True) -> dict[str, float]:
        """The weights below each scope, by path: their sum, or the heaviest."""
        below: dict[str, float] = {}
        for name, weight in weights.items():
            for scope in self.ancestors.get(name, ()):
                before = below.get(scope.path, 0.0)
                below[scope.path] = before + weight if summed else max(before, weight)
        return below

    def visible(self, opened: set[str], weights: Mapping[str, float] | None = None,
                matches: set[str] | None = None, summed: bool = True) -> list[VisibleRow]:
        """The lines of the tree view: siblings by weight where weights are given, else in network order.

        Args:
            summed: A scope weighs what is below it together, not as much as the heaviest of it.
        """
        weights = weights or {}
        sums = self.weights_of_scopes(weights, summed)
        allowed = {scope.path for name in matches or () for scope in self.ancestors[name]}

        def weigh(row: Row) -> float:
            if isinstance(row, Scope):
                return -sums.get(row.path, 0.0)
            if isinstance(row, GroupRow):
                return -weights.get(row.group.name, 0.0)
            return math.inf if isinstance(row, FoldedRow) else 0.0

        lines: list[VisibleRow] = []
        stack: list[tuple[Row, int]] = []

        def push(rows: Sequence[Row], depth: int) -> None:
            if matches is not None:
                rows = [row for row in rows
                        if (isinstance(row, Scope) and row.path in allowed)
                        or (isinstance(row, GroupRow) and row.group.name in matches)]
            if weights:
                rows = sorted(rows, key=weigh)
            stack.extend((row, depth) for row in reversed(rows))

        push(self.tree.children, 0)
        while stack:
            row, depth = stack.pop()
            if isinstance(row, Scope):
                is_open = matches is not None or row.path in opened
                lines.append(VisibleRow(row.path, depth, row, opened=is_open))
                if is_open:
                    push(row.children, depth + 1)
            else:
                lines.extend(self._leaf(row, depth, opened))
        return lines

    def worst_first(self, opened: set[str], weights: Mapping[str, float] | None, matches: set[str] | None = None,
                    first: Collection[str] = (), small: Collection[str] = ()) -> list[VisibleRow]:
        """The lines of the worst-first view: all groups, the heaviest first, then those of unknown weight.

        Args:
            first: Names of groups that stand before the heaviest: those that were raised.
            small: Names of those that one row stands for, unless there are few of them.
        """
        weights = weights or {}
        rows = [row for row in self.group_rows if matches is None or row.group.name in matches]
        rows.sort(key=lambda row: (row.group.name not in first, -weights.get(row.group.name, -math.inf)))
        folded = [row for row in rows if row.group.name in small] if matches is None else []
        folded = folded if len(folded) >= LEAST_FOLDED else []
        hidden = {row.group.name for row in folded}
        lines: list[VisibleRow] = []
        for row in rows:
            if row.group.name not in hidden:
                lines.extend(self._leaf(row, 0, opened))
        if folded:
            lines.append(VisibleRow(TAIL, 0, Tail(tuple(row.group.name for row in folded)), opened=TAIL in opened))
            for row in folded if TAIL in opened else ():
                lines.extend(self._leaf(row, 1, opened))
        if matches is None:
            for row in (*self.layer_rows, *((self.folded,) if self.folded else ())):
                lines.extend(self._leaf(row, 0, opened))
        return lines

    @staticmethod
    def _leaf(row: GroupRow | LayerRow | FoldedRow, depth: int, opened: set[str]) -> Iterable[VisibleRow]:
        names: tuple[str, ...] = ()
        if isinstance(row, FoldedRow):
            names = row.layers
        elif isinstance(row, GroupRow) and len(row.group.layers) > 1:
            names = row.group.layers
        is_open = bool(names) and row.path in opened
        yield VisibleRow(row.path, depth, row, opened=is_open)
        if is_open:
            for name in names:
                yield VisibleRow(f"{row.path}\0{name}", depth + 1, None, node=name)
