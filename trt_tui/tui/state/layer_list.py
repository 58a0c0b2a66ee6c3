"""What is listed of a network, and how: the view, the figures, the order, the opened rows, what the filter finds."""

import time
from collections.abc import Mapping, Sequence

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import GroupRow
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.formatting import cell_width
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, line_width
from trt_tui.tui.state.columns import NAME_COLUMN, SHARE_COLUMN, LayerColumn, sort_by_weight
from trt_tui.tui.state.filters import FilterItem, RowFilter
from trt_tui.tui.state.row_values import (
    BEST_SET_MARK,
    SHARE_BAND_LIMITS,
    TRIED_MARK,
    ColourMeasure,
    RowValues,
    build_row_values,
)
from trt_tui.tui.state.tree import SMALL_SHARES_KEY, TreeModel, View, VisibleRow

MIN_SORT_INTERVAL_S = 1.0
"""While figures come in and nobody has touched the tree, it is sorted again at most this often."""

MAX_REVEALED_ROWS = 12
"""The tree opens scopes by itself as long as at most this many rows show."""


class LayerList:
    """See the module's docstring.

    Attributes:
        view: What the main pane lists.
        measure: What rows are coloured by, in the run named ``run``.
        opened_paths: Paths of the scopes and rows that are open.
        order: Weights that rows are ordered by, None for network order; ``sort_column`` is the column that they are of.
        row_filter: What rows are filtered by, None where all show.
        matches: Names of the groups that it finds, None where there is none.
        follows_values: The cursor was not moved since the rows were sorted, so their order follows the figures.
        is_cursor_placed: The cursor stands where the user put it, or on the first answer; until then it is on the first
            row.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.view = View.TREE
        self.measure = ColourMeasure.SHARE
        self.run = "config"
        self.opened_paths: set[str] = set()
        self.sort_weights: Mapping[str, float] | None = None
        self.sort_column = SHARE_COLUMN
        self.row_filter: RowFilter | None = None
        self.matches: set[str] | None = None
        self.follows_values = True
        self.is_cursor_placed = False
        self._model: TreeModel | None = None
        self._row_values: RowValues | None = None
        self._last_config: PrecisionConfig | None = None
        self._last_sorted_s = 0.0
        self._leading_groups: frozenset[str] = frozenset()
        self._small_groups: frozenset[str] = frozenset()
        self._rows: list[VisibleRow] | None = None
        self._row_sources: tuple[object, ...] = ()

    @property
    def is_network_open(self) -> bool:
        """Whether there is a network to list; `tree_model` is there only then."""
        return self._model is not None

    @property
    def has_row_values(self) -> bool:
        """Whether `update_row_values` has been called since the network was opened; `row_values` are there only then.
        """
        return self._row_values is not None

    @property
    def tree_model(self) -> TreeModel:
        """The rows of the network."""
        assert self._model is not None, "nothing is open"
        return self._model

    @property
    def row_values(self) -> RowValues:
        """The figures of the rows."""
        assert self._row_values is not None, "nothing is open"
        return self._row_values

    @property
    def available_views(self) -> list[View]:
        """The views that this network has."""
        return [view for view in View if view is not View.BLOCKS or self.tree_model.blocks is not None]

    def open_network(self, outline: NetworkOutline) -> bool:
        """Lists a network; whether it is another one than was listed."""
        if self._model is not None and self._model.outline is outline:
            return False
        self._model = TreeModel(outline)
        self._row_values = self._rows = self.matches = self.row_filter = None
        self.opened_paths = self._model.choose_opened_scopes()
        self.is_cursor_placed = False
        return True

    def build_run_values(self, measure: ColourMeasure, run: str) -> RowValues:
        """The figures of another view."""
        return build_row_values(self.session, self.tree_model, measure, run)

    def update_row_values(self) -> None:
        """Takes the figures from the session; while nobody has touched the tree, its order follows them."""
        row_values = build_row_values(self.session, self.tree_model, self.measure, self.run, self._last_config)
        if self.measure is ColourMeasure.SHARE and not row_values.group_values:
            isolated_values = self.build_run_values(ColourMeasure.ISOLATED, self.run)
            if isolated_values.group_values or isolated_values.nonfinite_groups:
                row_values = isolated_values
        results, config = self.session.results, self.session.config
        if self._last_config is None or len(results.get_results_or_empty(config).shares) >= len(
                results.get_results_or_empty(self._last_config).shares):
            self._last_config = config
        self._row_values = row_values
        if self.row_filter is not None:
            self.apply_filter(self.row_filter)
        time_now = time.monotonic()
        if (self.follows_values and (row_values.group_values or row_values.nonfinite_groups)
                and (self.sort_weights is None or time_now - self._last_sorted_s > MIN_SORT_INTERVAL_S
                     or not self.session.is_busy)):
            self._last_sorted_s = time_now
            self.sort_rows()
            for name in row_values.group_names_worst_first[:MAX_REVEALED_ROWS]:
                if name in row_values.bad_rows and self.sort_column is SHARE_COLUMN:
                    self.reveal_group(name)
        else:  # a row whose share has grown is not hidden; others stay where they are
            self._small_groups &= row_values.small_share_groups

    def sort_rows(self, column: LayerColumn | None = None) -> None:
        """Orders the rows by the newest figures of a column, that of before by default; in the worst-first view those
        that were raised stand before the worst."""
        row_values = self.row_values
        self.sort_column = column if column is not None else self.sort_column
        self.sort_weights = self.sort_column.weigh_groups(row_values) or None
        is_by_share = self.sort_column is SHARE_COLUMN
        self._leading_groups = row_values.raised_groups if is_by_share and row_values.run == "config" else frozenset()
        self._small_groups = row_values.small_share_groups if is_by_share else frozenset()

    @property
    def is_row_order_stale(self) -> bool:
        """Whether the rows that lose something stand in another order than the newest figures would have them in."""
        if self.sort_weights is None:
            return False
        row_values = self.row_values
        if self.sort_column is not SHARE_COLUMN:
            weights = self.sort_column.weigh_groups(row_values)
            return sort_by_weight(list(weights), weights) != sort_by_weight(list(weights), self.sort_weights)
        min_value = SHARE_BAND_LIMITS[-1] if row_values.measure is ColourMeasure.SHARE else 0.0
        current_order = [
            name for name in row_values.group_names_worst_first if row_values.row_order_weights[name] >= min_value
        ]
        return current_order != sort_by_weight(current_order, self.sort_weights)

    @property
    def initial_cursor_path(self) -> str | None:
        """Path of the worst row, for the cursor that nobody has moved, once all shares are there; None before that, and
        where no row is bad."""
        shares = self.session.get_run_results("config").shares
        if self.measure is ColourMeasure.SHARE and self.session.is_busy and any(
                row.group.name not in shares for row in self.tree_model.group_rows):
            return None
        return self.worst_bad_row_path

    def apply_filter(self, row_filter: RowFilter | None) -> None:
        """Lists what a filter finds; everything where there is none. Figures that come in later count too."""
        self.row_filter = row_filter
        if row_filter is None:
            self.matches = None
            return
        shares, config = self.session.results.get_results_or_empty(self.session.config).shares, self.session.config
        self.matches = set()
        for row in self.tree_model.group_rows:
            share = shares.get(row.group.name)
            item = FilterItem(row.group,
                              self.tree_model.search_text(row), share.fraction if share is not None else None,
                              config.precision_of(row.group), row.group.name in config.groups_kept_by_rule)
            if row_filter.matches_all_terms(item):
                self.matches.add(row.group.name)

    def reveal_group(self, group_name: str) -> None:
        """Opens the scopes around a group."""
        if self.view is not View.WORST:
            self.opened_paths = self.opened_paths | {scope.path for scope in self.tree_model.ancestors[group_name]}
        elif group_name in self._small_groups:
            self.opened_paths = self.opened_paths | {SMALL_SHARES_KEY}

    def build_visible_rows(self) -> list[VisibleRow]:
        """The lines of the tree; the same list as long as nothing that makes them has changed."""
        sources = (self.view, self.opened_paths, self.sort_weights, self.matches, self._leading_groups,
                   self._small_groups)
        if self._rows is None or sources != self._row_sources:
            self._row_sources = sources
            if self.view is View.WORST:
                self._rows = self.tree_model.list_worst_first_rows(self.opened_paths, self.sort_weights, self.matches,
                                                                   self._leading_groups, self._small_groups)
            else:
                self._rows = self.tree_model.list_tree_rows(self.opened_paths, self.sort_weights, self.matches,
                                                            self.sort_column.is_additive)
        return self._rows

    @property
    def worst_bad_row_path(self) -> str | None:
        """Path of the worst row, None where it is not a bad one."""
        worst = next(iter(self.row_values.group_names_worst_first), None)
        if not self.sort_weights or worst is None:
            return None
        return self.tree_model.rows_by_group[worst].path if worst in self.row_values.bad_rows else None

    def find_neighbouring_bad_group(self, chosen_groups: Sequence[FusionGroup], forward: bool) -> str | None:
        """Name of the bad group that follows what is chosen, or precedes it, around the ends; None where there is none.

        Args:
            chosen_groups: One group, or those of a scope, whose first may itself be next.
        """
        model = self.tree_model
        if self.view is View.WORST:
            lines = model.list_worst_first_rows(set(), self.sort_weights, self.matches, self._leading_groups)
        else:
            lines = model.list_tree_rows({scope.path
                                          for scope in model.scopes}, self.sort_weights, self.matches,
                                         self.sort_column.is_additive)
        order = [line.row.group.name for line in lines if isinstance(line.row, GroupRow)]
        bad_indices = [index for index, name in enumerate(order) if name in self.row_values.bad_rows]
        if not bad_indices:
            return None
        position = order.index(chosen_groups[0].name) if chosen_groups and chosen_groups[0].name in order else -1
        if forward:
            indices_after = [
                index for index in bad_indices if index > position or (index == position and len(chosen_groups) != 1)
            ]
            return order[indices_after[0] if indices_after else bad_indices[0]]
        indices_before = [index for index in bad_indices if index < position]
        return order[indices_before[-1] if indices_before else bad_indices[-1]]


def _share_sample_count_text(layer_list: LayerList) -> str:
    """How many samples the shares were measured on; "" where it is all of them, or none is known."""
    session = layer_list.session
    sample_counts = [share.samples for share in session.get_run_results("config").shares.values()]
    all_samples = session.data_summary.what_if_count if session.data_summary is not None else 0
    if not sample_counts or min(sample_counts) >= all_samples:
        return ""
    return f"shares on {min(sample_counts)} to {max(sample_counts)} of {all_samples}" if min(sample_counts) < max(
        sample_counts) else (f"shares on {min(sample_counts)} of {all_samples}")


def view_title(layer_list: LayerList) -> str:
    """Returns the title of the view; the rows are called worst first only while they are."""
    if layer_list.view is not View.WORST:
        return str(layer_list.view.value).capitalize()
    row_values = layer_list.row_values
    if (layer_list.sort_column is not SHARE_COLUMN or not layer_list.sort_weights or layer_list.is_row_order_stale
            or row_values.stale_groups):
        return "All layers"
    return "Worst first" if len(row_values.group_values.keys() | row_values.unknown_groups) >= len(
        layer_list.tree_model.rows_by_group) else "Worst so far"


def layer_list_title(layer_list: LayerList, width: int) -> tuple[str, Line]:
    """Left and right words of the list's rule of so many cells; a click on a view shows it. Where not all fits, on how
    many samples shares are is left to the rows' details."""
    model, row_values, search_status = layer_list.tree_model, layer_list.row_values, layer_list.session.search_status
    stale_text = f", order out of date: {shown_key('sort')} sorts" if layer_list.is_row_order_stale else ""
    order_text = (f", {'' if layer_list.sort_column is NAME_COLUMN else 'by '}{layer_list.sort_column.order_title}"
                  if layer_list.sort_column is not SHARE_COLUMN else "")
    title = f"{shown_key('pane_tree')} {view_title(layer_list)} in {row_values.config_name}{order_text}{stale_text}"
    extra_text = ""
    if layer_list.matches is not None:
        title += f" ─ {len(layer_list.matches)} of {len(model.group_rows)} match, {shown_key('close')} clears"
    elif layer_list.session.is_searching and search_status is not None and search_status.progress is not None:
        title += f" ─ {BEST_SET_MARK} raised in the best so far, {TRIED_MARK} being tried"
    elif row_values.measure is not ColourMeasure.SHARE or row_values.run != "config":
        title += f" ─ {row_values.measure.value}{' error' if row_values.measure is not ColourMeasure.SHARE else ''}"
    elif layer_list.view is View.BLOCKS:
        title += f" ─ {shown_key('toggle')} on a label: the role everywhere"
    else:
        capable_text = (
            f"{row_values.quantizable_group_count} of "
            f"{len(model.group_rows)} can run {row_values.lowest_precision.label}"
        )
        extra_text = f" ─ {_share_sample_count_text(layer_list) or capable_text}"
    right: Line = [(f"{shown_key('view')}:", "dim@do('view')")]
    for index, view in enumerate(layer_list.available_views):
        right += [(" · " if index else " ", "dim"), (view.value.removesuffix(" first"), f"dim@see('{view.value}')")]
    return title + (extra_text if cell_width(title + extra_text) + line_width(right) + 8 <= width else ""), right
