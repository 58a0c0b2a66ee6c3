"""The rows of a network as plain data, their order in the layer list, and their values: errors, precisions, engines."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import TypeVar

from trt_tui.core.engines.group_implementations import GroupImplementation, Preview, is_unrequested_precision
from trt_tui.core.engines.inspector import COMPUTE, EngineReport
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import ErrorShare
from trt_tui.core.moves.config import (
    BarrierMove,
    KeepRuleMove,
    PrecisionConfig,
    PrecisionMove,
    RangeMove,
    find_network_range_method,
)
from trt_tui.core.moves.move import Move
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
from trt_tui.core.precision import Precision
from trt_tui.formatting import (
    MIN_SHOWN_SHARE,
    SIMULATED_MARK,
    cell_width,
    counted_noun_text,
    decibels_text,
    number_text,
    percent_text,
    run_title,
)
from trt_tui.session.session import Session
from trt_tui.tui.spans import Span
from trt_tui.tui.state import engine_texts
from trt_tui.tui.state.config_list import ToggleResult, find_toggle_result
from trt_tui.tui.state.config_status import config_name, current_config_meets_target, is_measuring_shares
from trt_tui.tui.state.marks import (
    BAD_GLYPH,
    BAND_GLYPHS,
    BAND_LIMITS_DB,
    KEPT_MARK,
    OTHER_CHANGE_MARK,
    OTHER_PRECISION_MARK,
    RAISED_MARK,
    RANGE_MARKS,
    REDUCED_MARK,
    SHARE_BAND_LIMITS,
    UNKNOWN_GLYPH,
    USER_RANGE_MARK,
)

NumberT = TypeVar("NumberT", int, float)


class LayerListView(Enum):
    """The views of the main pane: the tree of scopes, rows worst first, or the heat map of blocks."""

    TREE = "tree"
    WORST = "worst first"
    BLOCKS = "blocks"


SMALL_SHARES_KEY = "\0tail"
"""The key of the row that represents groups with very small shares."""

MIN_FOLDED_ROWS = 3
"""The minimum number of rows that are folded into one row."""


@dataclass(frozen=True)
class SmallSharesRow:
    """A row that represents groups with very small shares: in the worst-first view all of them, in the tree those
    without constants.

    Attributes:
        names: The names of these groups.
    """

    names: tuple[str, ...]
    label: str


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
    """The tree of rows of a network outline, with look-up tables for the screen. It does not change after construction."""

    def __init__(self, outline: NetworkOutline) -> None:
        self.outline = outline
        self.tree: Scope = build_scope_tree(outline.layers, outline.groups)
        self.blocks: BlockMatrix | None = find_repeated_blocks(self.tree)
        self.rows_by_group: dict[str, GroupRow] = {}
        self.ancestors: dict[str, tuple[Scope, ...]] = {}
        self.titles: dict[str, str] = {}
        self.layer_rows: list[UngroupedRow] = []
        self.folded_row: OtherNodesRow | None = None
        self.scopes: list[Scope] = []
        self._paths_around_layer_rows: set[str] = set()
        stack: list[tuple[Row, tuple[Scope, ...]]] = [(row, ()) for row in reversed(self.tree.children)]
        while stack:
            row, outer_scopes = stack.pop()
            if isinstance(row, Scope):
                self.scopes.append(row)
                inner_scopes = (*outer_scopes, row)
                stack.extend((child, inner_scopes) for child in reversed(row.children))
            elif isinstance(row, GroupRow):
                self.rows_by_group[row.group.name] = row
                self.ancestors[row.group.name] = outer_scopes
                self.titles[row.group.name] = "/".join((*(scope.label for scope in outer_scopes), row.label))
            elif isinstance(row, UngroupedRow):
                self.layer_rows.append(row)
                self._paths_around_layer_rows.update(scope.path for scope in outer_scopes)
            else:
                self.folded_row = row
        self.longest_name_cells = max(map(cell_width, self.titles.values()), default=0)
        self.group_macs: dict[str, int | None] = {}
        for group in outline.groups:
            layer_macs = [macs for name in group.layers if (macs := outline.layer_by_name[name].macs) is not None]
            self.group_macs[group.name] = sum(layer_macs) if len(layer_macs) == len(group.layers) else None
        self.scope_macs = self.combine_by_scope({name: value or 0 for name, value in self.group_macs.items()})
        self.total_macs = sum(value or 0 for value in self.group_macs.values())
        self._cached_scope_times: tuple[EngineReport | None, dict[str, float]] = (None, {})

    @cached_property
    def groups_without_constants(self) -> frozenset[str]:
        """The names of the groups that read no constants: all their inputs depend on the inputs of the network."""
        computed_tensors = {info.name for info in self.outline.inputs}
        weightless_layers = set()
        for layer in self.outline.layers:
            inputs = {name for name in layer.inputs if name}
            if inputs <= computed_tensors:
                weightless_layers.add(layer.name)
            if inputs & computed_tensors:
                computed_tensors.update(layer.outputs)
        return frozenset(group.name for group in self.outline.groups if weightless_layers.issuperset(group.layers))

    def list_groups_of_row(self, row: Row | SmallSharesRow | None) -> tuple[FusionGroup, ...]:
        """Returns the fusion groups that a change on a row affects."""
        if isinstance(row, Scope):
            return tuple(map(self.outline.get_group, row.groups))
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
        """Returns the text of a row in which a filter searches: its names, path and operator, each on a line."""
        name = row.group.name
        return "\n".join((row.label, self.titles[name], row.path, name, row.group.operator))

    def combine_by_scope(
        self, values: Mapping[str, NumberT], combine: Callable[[NumberT, NumberT], NumberT] = operator.add
    ) -> dict[str, NumberT]:
        """Returns the value of each scope by path: by default the sum of the values of its groups."""
        combined: dict[str, NumberT] = {}
        for name, value in values.items():
            for scope in self.ancestors.get(name, ()):
                combined[scope.path] = combine(combined[scope.path], value) if scope.path in combined else value
        return combined

    def list_tree_rows(
        self,
        opened_paths: set[str],
        sort_values: Mapping[str, float] | None = None,
        matching_groups: set[str] | None = None,
        is_additive: bool = True,
        small_groups: Collection[str] = (),
    ) -> list[VisibleRow]:
        """Returns the lines of the tree view. Siblings are sorted by their sort values, which a column shows.

        Without ``sort_values`` they have the order of the network.

        Args:
            matching_groups: The groups to list, with their scopes; None for all rows.
            is_additive: If True, the sort value of a scope is the sum of its groups' values, else their maximum.
            small_groups: The names of groups without constants that one row represents, as in `list_worst_first_rows`.
        """
        sort_values = sort_values or {}
        sums = self.combine_by_scope(sort_values, operator.add if is_additive else max)
        folded = _choose_folded_rows(self.rows_by_group.values(), small_groups) if matching_groups is None else []
        listed_groups = self.rows_by_group.keys() - {row.group.name for row in folded} if folded else matching_groups
        allowed = {scope.path for name in listed_groups or () for scope in self.ancestors[name]}
        if folded:
            allowed |= self._paths_around_layer_rows

        def sort_key(row: Row) -> float:
            if isinstance(row, Scope):
                return -sums.get(row.path, 0.0)
            if isinstance(row, GroupRow):
                return -sort_values.get(row.group.name, 0.0)
            return math.inf if isinstance(row, OtherNodesRow) else 0.0

        lines: list[VisibleRow] = []
        stack: list[tuple[Row, int]] = []

        def push_rows(rows: Sequence[Row], depth: int) -> None:
            if listed_groups is not None:
                rows = [
                    row
                    for row in rows
                    if (
                        row.path in allowed
                        if isinstance(row, Scope)
                        else row.group.name in listed_groups
                        if isinstance(row, GroupRow)
                        else matching_groups is None
                    )
                ]
            if sort_values:
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
        return lines + self._list_folded_rows(folded, "layers without weights", opened_paths)

    def list_worst_first_rows(
        self,
        opened_paths: set[str],
        sort_values: Mapping[str, float] | None,
        matching_groups: set[str] | None = None,
        leading_groups: Collection[str] = (),
        small_groups: Collection[str] = (),
    ) -> list[VisibleRow]:
        """Returns the lines of the worst-first view: groups by decreasing sort value, then groups without one.

        Args:
            leading_groups: The names of groups that come first: raised groups, which have no share.
            small_groups: The names of groups that one row represents, unless there are fewer than `MIN_FOLDED_ROWS`.
        """
        sort_values = sort_values or {}
        rows = [
            row for row in self.rows_by_group.values() if matching_groups is None or row.group.name in matching_groups
        ]
        rows.sort(key=lambda row: (row.group.name not in leading_groups, -sort_values.get(row.group.name, -math.inf)))
        folded = _choose_folded_rows(rows, small_groups) if matching_groups is None else []
        hidden = {row.group.name for row in folded}
        lines: list[VisibleRow] = []
        for row in rows:
            if row.group.name not in hidden:
                lines.extend(self._list_leaf_rows(row, 0, opened_paths))
        lines += self._list_folded_rows(folded, "more", opened_paths)
        if matching_groups is None:
            for row in (*self.layer_rows, *((self.folded_row,) if self.folded_row else ())):
                lines.extend(self._list_leaf_rows(row, 0, opened_paths))
        return lines

    def _list_folded_rows(self, folded: Sequence[GroupRow], label: str, opened_paths: set[str]) -> list[VisibleRow]:
        """Returns the row that represents other rows, and these rows with their full names if it is open."""
        if not folded:
            return []
        is_open = SMALL_SHARES_KEY in opened_paths
        row = SmallSharesRow(tuple(row.group.name for row in folded), f"{len(folded)} {label}")
        lines = [VisibleRow(SMALL_SHARES_KEY, 0, row, is_opened=is_open)]
        for group_row in folded if is_open else ():
            titled_row = replace(group_row, label=self.titles[group_row.group.name])
            lines.extend(self._list_leaf_rows(titled_row, 1, opened_paths))
        return lines

    @staticmethod
    def _list_leaf_rows(
        row: GroupRow | UngroupedRow | OtherNodesRow, depth: int, opened_paths: set[str]
    ) -> Iterable[VisibleRow]:
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


def _choose_folded_rows(rows: Iterable[GroupRow], small_groups: Collection[str]) -> list[GroupRow]:
    """Returns the rows of the given groups; none if there are fewer than `MIN_FOLDED_ROWS`."""
    folded = [row for row in rows if row.group.name in small_groups]
    return folded if len(folded) >= MIN_FOLDED_ROWS else []


class ColourMeasure(Enum):
    """The measure that determines the colours of the rows."""

    SHARE = "share"
    ISOLATED = "isolated"
    ACCUMULATED = "accumulated"
    ENGINE = "engine"


MAX_BAD_BAND = 2
"""The highest colour band of a bad row. The keys for bad rows move between rows of bands 0 to 2."""


def find_colour_band(value: float, measure: ColourMeasure) -> int:
    """Returns the colour band of a value, from 0 (worst) to 4 (almost no error).

    Args:
        value: An error share from 0 to 1, or an error in dB.
    """
    if measure is ColourMeasure.SHARE:
        return next((i for i, min_share in enumerate(SHARE_BAND_LIMITS) if value >= min_share), 4)
    return next((i for i, max_db in enumerate(BAND_LIMITS_DB) if value < max_db), 4)


_LEGEND = (
    (RAISED_MARK, "raised"),
    ((*RANGE_MARKS.values(), USER_RANGE_MARK), "range"),
    (KEPT_MARK, "fixed"),
    ("f", "file"),
    (OTHER_CHANGE_MARK, "other change"),
    (REDUCED_MARK, "reduced"),
    (OTHER_PRECISION_MARK, "preview"),
    (BAD_GLYPH, "NaN/Inf"),
    (UNKNOWN_GLYPH, "not measured"),
)
"""The marks before names and behind precisions with their meanings, the most important first."""


def band_legend_text(measure: ColourMeasure) -> str:
    """Returns the legend of the glyphs for a measure. The layer list needs none, as it shows the values."""
    if measure is ColourMeasure.SHARE:
        return "█ ≥20%  ▓ 5–20  ▒ 1–5  ░ 0.2–1  · less  ! NaN/Inf  ? not measured"
    return "█ <10 dB  ▓ 10–20  ▒ 20–30  ░ 30–40  · more  ! NaN/Inf  ? not measured"


def sign_legend_text(signs: Collection[str], width: int) -> str:
    """Returns the legend of the signs in the layer list: glyphs before names and marks behind precisions.

    If the legend is wider than ``width`` cells, its last entries are left out.
    """
    entries = [
        f"{' '.join(shown)} {text}" for marks, text in _LEGEND if (shown := [mark for mark in marks if mark in signs])
    ]
    while entries and cell_width("  ".join(entries)) > width:
        entries.pop()
    return "  ".join(entries)


@dataclass
class RowValues:
    """The values of all rows for one measure and one run, read from the session once.

    Attributes:
        find_toggle: Returns the value of the target, titled ``metric_title``, after groups are toggled. The function is
            called when their row is drawn. The values are empty for a run other than the config.
        shown_engine: The engine of the run, which can be that of an earlier config; None if none exists.
        preview: The preview of the config; None if a built engine replaces it or none exists.
        shares: The displayed error shares by group name; empty for another measure.
        is_final: False if a value is missing, or does not cover all samples that it will cover.
        is_measuring_shares: True if shares of the displayed run can still change.
        early_groups: Groups whose share was measured on few samples, and will be measured on more.
        warned_groups: Groups with a warning about values in FP16 or coordinates, with or without an effect.
        run_config: The config of the run, if it is not ``config``.
        divergence_group: The name of the first group at which the engine is worse than its simulation by more than
            `UNEXPLAINED_GAP_DB`; "" if there is none.
    """

    model: TreeModel
    config: PrecisionConfig
    measure: ColourMeasure = ColourMeasure.SHARE
    run: str = "config"
    group_values: Mapping[str, float] = field(default_factory=dict)
    nonfinite_groups: frozenset[str] = frozenset()
    config_name: str = ""
    find_toggle: Callable[[Sequence[FusionGroup]], ToggleResult] = field(default=lambda groups: ToggleResult())
    metric_title: str = "SQNR"
    is_target_met: bool = False
    full_bar_value: float = 0.0
    shown_engine: engine_texts.ShownEngine | None = None
    preview: Preview | None = None
    divergence_group: str = ""
    run_config: PrecisionConfig | None = None
    shares: Mapping[str, ErrorShare] = field(default_factory=dict)
    is_final: bool = True
    is_measuring_shares: bool = False
    early_groups: frozenset[str] = frozenset()
    warned_groups: frozenset[str] = frozenset()

    @cached_property
    def implementations(self) -> Mapping[str, GroupImplementation]:
        """The implementation of each group in the engine, by group name; empty if the preview replaces the engine."""
        return self.shown_engine.result.implementations if self.shown_engine and self.preview is None else {}

    @property
    def has_engines(self) -> bool:
        """True if an engine reports on the groups, so that the list has an engine column."""
        return bool(self.implementations)

    @property
    def engine_config_name(self) -> str:
        """The name of the config that the engine was built from; "" if it is the displayed config."""
        engine = self.shown_engine if self.implementations else None
        return engine.name if engine is not None and engine.is_stale else ""

    @cached_property
    def group_times(self) -> Mapping[str, float]:
        """The measured milliseconds by group. Times of a preview are omitted: they are not valid for production."""
        return {
            name: implementation.latency_ms
            for name, implementation in self.implementations.items()
            if implementation.latency_ms is not None
        }

    @cached_property
    def scope_times(self) -> Mapping[str, float]:
        """The measured milliseconds by path of the scope."""
        engine = self.shown_engine if self.implementations else None
        return self.model.sum_scope_times(engine.result.engine_report if engine is not None else None)

    @cached_property
    def scope_other_counts(self) -> Mapping[str, int]:
        """The number of groups in another precision than requested, in the preview or the engine, by path of the scope."""
        return self.model.combine_by_scope(
            {
                group.name: 1
                for group in self.model.outline.groups
                if self.differs_in_preview(group)
                or group.name in self.implementations
                and is_unrequested_precision(group, self.requested_precision(group), self.implementations[group.name])
            }
        )

    @cached_property
    def scope_values(self) -> Mapping[str, float]:
        """The value of each scope by path: the sum of its groups' shares, or the worst of their errors."""
        return self.model.combine_by_scope(
            self.group_values, operator.add if self.measure is ColourMeasure.SHARE else min
        )

    @cached_property
    def nonfinite_scopes(self) -> Collection[str]:
        """The paths of the scopes with NaN or Inf."""
        return self.model.combine_by_scope(dict.fromkeys(self.nonfinite_groups, 1)).keys()

    @cached_property
    def scope_raised_counts(self) -> Mapping[str, int]:
        """The number of raised groups by path of the scope."""
        return self.model.combine_by_scope(dict.fromkeys(self.raised_groups, 1))

    @cached_property
    def unknown_groups(self) -> frozenset[str]:
        """The groups whose share was measured without a usable result."""
        return frozenset(name for name, share in self.shares.items() if share.unknown_reason)

    @cached_property
    def missing_groups(self) -> Collection[str]:
        """The groups whose share is still to be measured."""
        known_groups = (self.group_values.keys() | self.unknown_groups) - self.early_groups
        has_sums = self.measure is ColourMeasure.SHARE and self.group_values
        return self.model.rows_by_group.keys() - known_groups if has_sums else ()

    @property
    def missing_groups_text(self) -> str:
        """The number of measured rows as text; "" if no row is still to be measured."""
        row_count = len(self.model.rows_by_group)
        measured_count = row_count - len(self.missing_groups)
        return f"only {measured_count} of {row_count} rows are measured" if self.missing_groups else ""

    @cached_property
    def partial_scopes(self) -> Collection[str]:
        """The paths of the scopes with incomplete sums, because groups are still being measured."""
        return self.model.combine_by_scope(dict.fromkeys(self.missing_groups, 1)).keys()

    def order_doubt_text(self, group_name: str, other_names: Iterable[str] | None = None) -> str:
        """Returns the reason why the place of a group in the order by the displayed values is not certain; "" if it is.

        Args:
            other_names: The groups of this order; None for all groups.
        """
        share = self.shares.get(group_name)
        if not self.is_final:
            return self.missing_groups_text or "not all samples are measured"
        others = sum(
            share is not None
            and share.overlaps(self.shares[name])
            and max(share.fraction, self.shares[name].fraction) >= MIN_SHOWN_SHARE
            for name in self.shares.keys() & set(self.shares if other_names is None else other_names) - {group_name}
        )
        return f"its order to {counted_noun_text(others, 'other row')} is not certain" if others else ""

    @cached_property
    def barrier_tensors(self) -> frozenset[str]:
        """The names of the tensors with a fusion barrier."""
        return frozenset(self.config.get_moves(BarrierMove))

    @cached_property
    def network_range_method(self) -> str:
        """The calibration method that the config sets for the whole network; "" if it sets none. Rows show no mark for
        this method."""
        return find_network_range_method(self.config, self.model.outline)

    @cached_property
    def quantized_type(self) -> Precision:
        """The quantized type that the config mainly uses, by the rule of `PrecisionConfig.find_main_quantized_type`."""
        return self.config.find_main_quantized_type(self.model.outline)

    @cached_property
    def lowest_precision(self) -> Precision:
        """The reduced precision that the config mainly uses, by the rule of `PrecisionConfig.find_main_low_precision`."""
        return self.config.find_main_low_precision(self.model.outline)

    @cached_property
    def reducible_group_count(self) -> int:
        """The number of groups that can run in `lowest_precision`."""
        return sum(self.lowest_precision in group.allowed_precisions for group in self.model.outline.groups)

    @cached_property
    def worst_first_sort_values(self) -> dict[str, float]:
        """The sort values of groups in the worst-first order, by group name. Groups with NaN or Inf have the largest."""
        if self.measure is ColourMeasure.SHARE:
            sort_values = dict(self.group_values)
        else:
            sort_values = {name: 10 ** (-value / 10) for name, value in self.group_values.items()}
        sort_values.update((name, 1e9) for name in self.model.outline.group_by_name if name in self.nonfinite_groups)
        return sort_values

    @cached_property
    def group_names_worst_first(self) -> tuple[str, ...]:
        """The names of the groups with a positive sort value, the largest value first."""
        return tuple(
            name
            for name, sort_value in sorted(self.worst_first_sort_values.items(), key=lambda item: -item[1])
            if sort_value > 0
        )

    @cached_property
    def small_share_groups(self) -> frozenset[str]:
        """The groups with a very small share and without moves, which one row of the worst-first view represents."""
        if self.measure is not ColourMeasure.SHARE or self.run != "config":
            return frozenset()
        groups = self.model.outline.group_by_name
        return frozenset(
            name
            for name, value in self.group_values.items()
            if abs(value) < SHARE_BAND_LIMITS[-1]
            and name in groups
            and name not in self.nonfinite_groups
            and not self.config_change_marks(groups[name])
            and name not in self.config.precision_moves
        )

    @cached_property
    def small_groups_without_constants(self) -> frozenset[str]:
        """The groups without constants whose row shows no loss and no finding, which one row of the tree represents."""
        outline = self.model.outline
        noted_groups = {
            self.divergence_group,
            *self.warned_groups,
            *(name for site in outline.defect_sites for name in site.groups),
        }
        groups = [
            outline.group_by_name[name]
            for name in (self.small_share_groups & self.model.groups_without_constants) - noted_groups
        ]
        return frozenset(
            group.name
            for group in groups
            if Precision.FP16 not in group.refusal_reasons
            and not self.has_barrier_behind(group)
            and not self.differs_in_preview(group)
            and not self.has_unrequested_engine_precision(group)
        )

    @cached_property
    def raised_groups(self) -> frozenset[str]:
        """The groups that the current config runs in a higher precision than their default. The displayed run does not
        matter."""
        return frozenset(self.config.find_raised_groups(self.model.outline))

    @cached_property
    def bad_group_names(self) -> frozenset[str]:
        """The names of the groups with NaN or Inf, or with a value in the worst colour bands."""
        bad_group_names = {
            name for name, value in self.group_values.items() if find_colour_band(value, self.measure) <= MAX_BAD_BAND
        }
        return frozenset((bad_group_names | self.nonfinite_groups) & self.model.rows_by_group.keys())

    def row_value_text(self, value: float, mark: str = SIMULATED_MARK) -> str:
        """Returns the displayed form of a value: a percentage or decibels, with the mark of a simulated value."""
        if self.measure is ColourMeasure.SHARE:
            return percent_text(value, mark)
        return decibels_text(value, exact=value == math.inf, mark="" if self.measure is ColourMeasure.ENGINE else mark)

    def choose_glyph_and_style(self, value: float | None, is_nonfinite: bool) -> tuple[str, str]:
        if is_nonfinite:
            return BAD_GLYPH, "bad"
        if value is None:
            return UNKNOWN_GLYPH, "dim"
        band = find_colour_band(value, self.measure)
        if self.is_target_met:
            return BAND_GLYPHS[band], "dim"
        return BAND_GLYPHS[band], f"band{band}"

    def scope_glyph_span(self, scope: Scope) -> Span:
        """Returns the glyph of a scope and the style of its row."""
        return self.choose_glyph_and_style(self.scope_values.get(scope.path), scope.path in self.nonfinite_scopes)

    def group_glyph_span(self, group: FusionGroup) -> Span:
        """Returns the glyph of a fusion group and the style of its row."""
        is_nonfinite = group.name in self.nonfinite_groups
        glyph, style = self.choose_glyph_and_style(self.group_values.get(group.name), is_nonfinite)
        if is_nonfinite or not self.is_marked_as_raised(group):
            return glyph, style
        return RAISED_MARK, "raised" if self.share_replacement_text(group) else style

    def is_marked_as_raised(self, group: FusionGroup) -> bool:
        """Returns True if the row of a raised group shows an arrow in place of its glyph.

        The glyph stays if an arrow already follows the precision of the row.
        """
        return group.name in self.raised_groups and RAISED_MARK not in self.config_change_marks(group)

    def has_barrier_behind(self, group: FusionGroup) -> bool:
        """Returns True if a result of a group has a fusion barrier."""
        return self.run == "config" and not self.barrier_tensors.isdisjoint(
            BarrierMove.subject_kind.list_subjects_of_group(group)
        )

    def group_engine_span(self, group: FusionGroup) -> Span:
        """Returns the implementation of a group in the engine, for a column; "" if it is not known."""
        text = engine_texts.implementation_text(
            self.implementations.get(group.name), group.precision_shown_by_engine(self.requested_precision(group))
        )
        return text, self.engine_text_style(text.startswith(OTHER_PRECISION_MARK))

    def has_unrequested_engine_precision(self, group: FusionGroup) -> bool:
        """Returns True if the engine runs a group in another precision than requested."""
        return self.group_engine_span(group)[0].startswith(OTHER_PRECISION_MARK)

    @property
    def implementation_style(self) -> str:
        """The style of texts about the engine or preview of a row: stale if the engine is that of another config."""
        return "stale" if self.engine_config_name else ""

    def differs_in_preview(self, group: FusionGroup) -> bool:
        """Returns True if the preview of the config refuses a group, or runs it in another form than requested."""
        return self.preview is not None and engine_texts.differs_in_preview(
            self.preview, group, self.requested_precision(group)
        )

    def config_change_marks(self, group: FusionGroup) -> str:
        """Returns the characters that mark the changes on a group: letters of its moves, and an arrow for a changed
        precision.

        A group that is raised to FP32 has no arrow here.
        """
        if self.run != "config":
            return ""
        requested_precision = self.requested_precision(group)
        default = self.config.default_precision_of(group)
        marks = (
            ""
            if requested_precision is Precision.FP32
            else RAISED_MARK
            if group.precision_rank(requested_precision) > group.precision_rank(default)
            else REDUCED_MARK
            if group.precision_rank(requested_precision) < group.precision_rank(default)
            else ""
        )
        move_marks = [
            find_mark_of_move(move)
            for _, move in self.config.find_moves_on_group(group)
            if not (
                self.network_range_method and isinstance(move, RangeMove) and move.method == self.network_range_method
            )
        ]
        return marks + "".join(dict.fromkeys(move_marks))

    def share_replacement_text(self, group: FusionGroup) -> str:
        """Returns "fixed" or "raised" for a group in FP32 by rule or by choice, which has no share; "" for others."""
        if (
            self.run != "config"
            or self.measure is not ColourMeasure.SHARE
            or self.requested_precision(group) is not Precision.FP32
        ):
            return ""
        return (
            "fixed"
            if group.name in self.config.groups_fixed_by_rule
            else "raised"
            if group.name in self.config.precision_moves
            else ""
        )

    def requested_precision(self, group: FusionGroup) -> Precision:
        """Returns the requested precision of a group in this run."""
        return (self.run_config or self.config).precision_of(group)

    def engine_text_style(self, is_other_precision: bool) -> str:
        """Returns the style name of a group's text in the engine column of the layer list."""
        return "stale" if self.engine_config_name else "strong" if is_other_precision else "dim"

    def cost_text(self, macs: int | None, latency_ms: float | None) -> str:
        """Returns the measured milliseconds of a row; its fraction of all MACs if no times were measured."""
        if self.group_times:
            return "" if latency_ms is None else "·" if latency_ms < 5e-4 else number_text(latency_ms)
        if macs is None or not self.model.total_macs:
            return ""
        share = macs / self.model.total_macs
        return percent_text(share)


def build_row_values(session: Session, tree_model: TreeModel, measure: ColourMeasure, run: str) -> RowValues:
    """Returns the row values of a measure and a run, from the results of the session."""
    config, results, is_share = session.config, session.get_run_results(run), measure is ColourMeasure.SHARE
    errors_at_groups = (
        find_engine_errors(session, run)
        if measure is ColourMeasure.ENGINE
        else {
            name: error_metrics
            for name, entry in results.group_errors.items()
            if (error_metrics := entry.isolated if measure is ColourMeasure.ISOLATED else entry.accumulated) is not None
        }
    )
    shares = results.shares if is_share else {}
    is_measuring = is_share and run == "config" and is_measuring_shares(session)
    if is_share:
        group_values = {name: share.fraction for name, share in shares.items() if math.isfinite(share.fraction)}
    else:
        sqnr_values = {name: math.inf if entry.exact else entry.sqnr_db for name, entry in errors_at_groups.items()}
        group_values = {name: value for name, value in sqnr_values.items() if value is not None}
    all_samples = session.count_judging_samples(config) if is_measuring else 0
    divergence = session.find_engine_divergence(run)
    return RowValues(
        tree_model,
        config,
        measure,
        run,
        group_values,
        frozenset(name for name, entry in errors_at_groups.items() if entry.nonfinite_count),
        config_name=config_name(session) if run == "config" else run_title(run),
        find_toggle=partial(find_toggle_result, session) if run == "config" else lambda groups: ToggleResult(),
        metric_title=session.target.column_title if session.target is not None else "SQNR",
        is_target_met=run == "config" and current_config_meets_target(session),
        full_bar_value=max((0.05, *group_values.values())) if is_share else 0.0,
        shown_engine=engine_texts.find_shown_engine(session, run),
        preview=engine_texts.find_shown_preview(session, run),
        divergence_group=divergence.group_name if divergence is not None else "",
        run_config=session.get_run_config(run),
        shares=shares,
        is_final=results.has_all_shares
        if is_share
        else measure is ColourMeasure.ENGINE or results.has_all_group_errors,
        is_measuring_shares=is_measuring,
        early_groups=frozenset(name for name, share in shares.items() if share.samples < all_samples),
        warned_groups=frozenset(
            name for name, entry in results.group_errors.items() if entry.has_overflow or entry.warning_text
        ),
    )


def find_engine_errors(session: Session, run: str) -> Mapping[str, ErrorMetrics]:
    """Returns the errors at fusion groups inside the engine of a run, by group name."""
    engine = session.get_run_results(run).engine_result
    return engine.engine_errors.group_errors if engine is not None and engine.engine_errors is not None else {}


def find_mark_of_move(move: Move) -> str:
    """Returns the letter that marks a move behind the precision of a row: a range mark, ``k`` for a keep rule, else
    ``+``.

    Precision moves and fusion barriers have no letter.
    """
    if isinstance(move, RangeMove):
        is_percentile = re.fullmatch(r"p\d.*", move.method)
        return RANGE_MARKS.get(move.method, RANGE_MARKS["percentile"] if is_percentile else USER_RANGE_MARK)
    if isinstance(move, (PrecisionMove, BarrierMove)):
        return ""
    return KEPT_MARK if isinstance(move, KeepRuleMove) else OTHER_CHANGE_MARK


def block_cell_span(row_values: RowValues, group_names: Sequence[str]) -> Span:
    """Returns the glyph and style of a cell of the heat map."""
    if not group_names:
        return (" ", "")
    values = [row_values.group_values[name] for name in group_names if name in row_values.group_values]
    choose_worst = max if row_values.measure is ColourMeasure.SHARE else min
    return row_values.choose_glyph_and_style(
        choose_worst(values, default=None), not row_values.nonfinite_groups.isdisjoint(group_names)
    )


_BLOCK_MEASURE_TEXTS = {
    ColourMeasure.SHARE: "its error share",
    ColourMeasure.ISOLATED: "its error with all its inputs from FP32",
    ColourMeasure.ACCUMULATED: "its error with the whole network in these precisions",
    ColourMeasure.ENGINE: "its error in the engine",
}


def block_cell_text(row_values: RowValues) -> str:
    """Returns the meaning of a cell of the heat map: ``a cell is one layer: its error share, c0``."""
    measure_text = _BLOCK_MEASURE_TEXTS[row_values.measure]
    return f"a cell is one layer: {measure_text}, {row_values.config_name}"


def role_precisions_text(row_values: RowValues, group_names: Sequence[str]) -> str:
    """Returns the default precisions of the groups of one role, and the number of raised ones: ``INT8, 2 raised``."""
    defaults = {
        group.precision_label(row_values.config.default_precision_of(group))
        for group in map(row_values.model.outline.get_group, group_names)
    }
    raised_count = len(row_values.raised_groups.intersection(group_names))
    text = "/".join(sorted(defaults))
    return f"{text}, {raised_count} raised" if raised_count else text
