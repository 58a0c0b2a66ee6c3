"""The state of the layer list: view, row values, order, opened rows and filter, with the parsing of its text."""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from trt_tui.core.network.layer_tree import GroupRow
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.formatting import cell_width, counted_noun_text
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, line_width
from trt_tui.tui.state.columns import NAME_COLUMN, SHARE_COLUMN, TOGGLE_COLUMN, LayerColumn
from trt_tui.tui.state.config_status import is_measuring_current_config, is_measuring_shares, is_measuring_toggles
from trt_tui.tui.state.rows import (
    SMALL_SHARES_KEY,
    ColourMeasure,
    LayerListView,
    RowValues,
    TreeModel,
    VisibleRow,
    build_row_values,
)

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_SHARE_PATTERN = re.compile(r"share(>=|<=|>|<)(\d+(?:\.\d+)?|\.\d+)(%?)", re.IGNORECASE)
_TERM_PATTERN = re.compile(r"!?/(?:[^/\\]|\\.)*/(?=\s|$)|\S+")
_MAX_PATTERN_CHARACTERS = 200
"""The maximum length of a pattern. A longer pattern is rejected, because the filter runs at each key press."""


@dataclass(frozen=True)
class FilterableGroup:
    """A fusion group with the properties that a filter tests.

    Attributes:
        search_text: Names, path and operator of the group, each on a line.
        share: The error share of the group; None if it is not measured.
        requested: The requested precision.
        is_kept: True if a keep rule fixes the precision.
    """

    group: FusionGroup
    search_text: str
    share: float | None
    requested: Precision
    is_kept: bool


FilterTest = Callable[[FilterableGroup], bool]


@dataclass(frozen=True)
class RowFilter:
    """A parsed row filter, which consists of one test for each valid term.

    Attributes:
        error_text: The error in the first invalid term; "" if all terms are valid.
    """

    tests: tuple[FilterTest, ...]
    error_text: str = ""


def parse_filter(text: str) -> RowFilter | None:
    """Returns the filter for a typed text; None if the text has no terms. A group matches if it meets every term.

    ==================  ================================================================================
    term                condition
    ==================  ================================================================================
    ``text``            name, path or operator contains the text, in any case
    ``/regex/``         name, path or operator contains a match, in any case; ``^`` and ``$`` are its ends
    ``share>1%``        the error share of the group (also ``>=``, ``<``, ``<=``); false if not measured
    ``prec:int8``       the requested precision; ``prec:file``: that of the file, ``prec:kept``: by a rule
    ``op:conv``         the operator contains the text
    ``!term``           the term is not met
    ==================  ================================================================================
    """
    tests, error_text = [], ""
    for term in _TERM_PATTERN.findall(text):
        bare_term, negated = (term[1:], True) if term.startswith("!") and len(term) > 1 else (term, False)
        try:
            test = _parse_filter_term(bare_term)
        except ValueError as error:
            error_text = error_text or str(error)
            continue
        tests.append((lambda item, test=test: not test(item)) if negated else test)
    return RowFilter(tuple(tests), error_text) if tests or error_text else None


def _parse_filter_term(term: str) -> FilterTest:
    if len(term) > 1 and term.startswith("/") and term.endswith("/"):
        if len(term) > _MAX_PATTERN_CHARACTERS:
            raise ValueError(f"a pattern has at most {_MAX_PATTERN_CHARACTERS} characters")
        try:
            pattern = re.compile(term[1:-1], re.IGNORECASE | re.MULTILINE)
        except re.error as error:
            raise ValueError(f"{term}: {error}") from None
        return lambda item: pattern.search(item.search_text) is not None
    if match := _SHARE_PATTERN.fullmatch(term):
        compare, limit = _COMPARISONS[match[1]], float(match[2]) / (100 if match[3] else 1)
        return lambda item: item.share is not None and compare(item.share, limit)
    lowered = term.lower()
    if lowered.startswith("prec:"):
        value = lowered.removeprefix("prec:")
        if value not in (allowed := (*(precision.value for precision in Precision), "kept")):
            raise ValueError(f"prec: takes {', '.join(allowed)}")
        return lambda item: item.is_kept if value == "kept" else item.requested.value == value
    if lowered.startswith("op:"):
        value = lowered.removeprefix("op:")
        return lambda item: value in item.group.operator.lower()
    if lowered.startswith("share"):
        raise ValueError("share is compared as in share>1%")
    return lambda item: lowered in item.search_text.lower()


MAX_REVEALED_ROWS = 12
"""The maximum number of bad rows whose scopes open automatically."""


class LayerList:
    """The state of the layer list of a session, from which its visible rows are computed.

    Attributes:
        view: The kind of list in the main pane.
        measure: The measure that determines the colours of the rows, for the run named ``run``.
        opened_paths: Paths of the opened scopes and rows.
        sort_values: The values that rows are sorted by; None for network order.
        sort_column: The column of the sort values.
        row_filter: The filter; None if all rows are displayed.
        matches: Names of the groups that match the filter; None without a filter.
        share_values: The error shares of the current config, or until one is measured, those of the config before. The
            worst row, the hint and the filter use these, whatever measure and run the view displays. They exist while a
            network is open.
        is_cursor_placed: True if the cursor is where the user moved it, or on the worst row found. Before that, the
            cursor is on the first row.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.view = LayerListView.TREE
        self.measure = ColourMeasure.SHARE
        self.run = "config"
        self.opened_paths: set[str] = set()
        self.sort_values: Mapping[str, float] | None = None
        self.sort_column = SHARE_COLUMN
        self.row_filter: RowFilter | None = None
        self.matches: set[str] | None = None
        self.is_cursor_placed = False
        self._model: TreeModel | None = None
        self._row_values: RowValues | None = None
        self.share_values: RowValues
        self._sorted_values: RowValues | None = None
        self._leading_groups: frozenset[str] = frozenset()
        self._small_groups: Mapping[LayerListView, frozenset[str]] = {}
        self._has_additive_sort_values = True
        self._rows: list[VisibleRow] | None = None
        self._row_sources: tuple[object, ...] = ()

    @property
    def is_network_open(self) -> bool:
        """True if a network is open and its row values are computed, which `tree_model` and `row_values` require."""
        return self._row_values is not None

    @property
    def tree_model(self) -> TreeModel:
        """The rows of the open network, in scopes."""
        assert self._model is not None, "nothing is open"
        return self._model

    @property
    def row_values(self) -> RowValues:
        """The values of the rows in the current view."""
        assert self._row_values is not None, "nothing is open"
        return self._row_values

    @property
    def available_views(self) -> list[LayerListView]:
        """The views that are possible for this network. The heat map requires repeated blocks."""
        return [
            view for view in LayerListView if view is not LayerListView.BLOCKS or self.tree_model.blocks is not None
        ]

    def open_network(self, outline: NetworkOutline) -> bool:
        """Lists the rows of a network, and returns True if another network, or none, was listed before."""
        if self._model is not None and self._model.outline is outline:
            return False
        self._model = TreeModel(outline)
        self._row_values = self._sorted_values = self._rows = self.matches = self.row_filter = None
        self.share_values = RowValues(self._model, self.session.config)
        self.opened_paths = self._model.choose_opened_scopes()
        self.is_cursor_placed = False
        return True

    def build_row_values_of_run(self, measure: ColourMeasure, run: str) -> RowValues:
        """Returns the row values for another measure or run."""
        return build_row_values(self.session, self.tree_model, measure, run)

    def update_row_values(self, can_sort: bool = True) -> None:
        """Updates the row values from the session, and sorts the rows if that is due.

        Args:
            can_sort: False keeps the order, because keys arrive.
        """
        row_values = self.build_row_values_of_run(ColourMeasure.SHARE, "config")
        self.share_values = (
            row_values
            if row_values.shares or not row_values.is_measuring_shares
            else replace(self.share_values, nonfinite_groups=row_values.nonfinite_groups)
        )
        if (self.measure, self.run) != (ColourMeasure.SHARE, "config"):
            row_values = self.build_row_values_of_run(self.measure, self.run)
        if self.measure is ColourMeasure.SHARE and not row_values.group_values:
            isolated_values = self.build_row_values_of_run(ColourMeasure.ISOLATED, self.run)
            if isolated_values.group_values or isolated_values.nonfinite_groups:
                row_values = isolated_values
        self._row_values = row_values
        if self.row_filter is not None:
            self.apply_filter(self.row_filter)
        if can_sort and self.is_sort_due:
            self.sort_rows()
            for name in () if self.is_cursor_placed else row_values.group_names_worst_first[:MAX_REVEALED_ROWS]:
                if name in row_values.bad_group_names:
                    self.reveal_group(name)
        else:  # a row with a larger share becomes visible; other rows keep their places
            small_groups, measured_names = _find_small_groups(row_values), row_values.group_values.keys()
            self._small_groups = {
                view: names - (measured_names - small_groups[view]) for view, names in self._small_groups.items()
            }

    def sort_rows(self, column: LayerColumn | None = None) -> None:
        """Sorts the rows by the newest values of a column; by default the column of the last sort.

        In the worst-first view, groups that show "raised" in place of a share come before the worst groups.
        """
        row_values = self._sorted_values = self.row_values
        self.sort_column = column if column is not None else self.sort_column
        self.sort_values = self.sort_column.compute_sort_values(row_values) or None
        is_by_share = self.sort_column is SHARE_COLUMN
        # A scope shows the worst error of its groups, but the sum of their shares.
        self._has_additive_sort_values = self.sort_column.is_additive and (
            not is_by_share or row_values.measure is ColourMeasure.SHARE
        )
        self._leading_groups = frozenset(
            name
            for name in (row_values.raised_groups if is_by_share else ())
            if row_values.share_replacement_text(row_values.model.outline.get_group(name))
        )
        self._small_groups = _find_small_groups(row_values) if is_by_share else {}

    @property
    def is_sort_due(self) -> bool:
        """True if values changed after the last sort, and no further values of the sort column are expected."""
        if self._row_values is None or self._row_values is self._sorted_values:
            return False
        is_measuring = (
            is_measuring_toggles
            if self.sort_column is TOGGLE_COLUMN
            else is_measuring_shares
            if self.measure is ColourMeasure.SHARE
            else is_measuring_current_config
        )
        return self.sort_column not in (SHARE_COLUMN, TOGGLE_COLUMN) or not is_measuring(self.session)

    @property
    def initial_cursor_path(self) -> str | None:
        """The path of the worst row, for a cursor that the user has not moved.

        None before the rows are sorted, or if no row is bad.
        """
        worst = next(iter(self.row_values.group_names_worst_first), None)
        is_bad = self.sort_values and worst in self.row_values.bad_group_names
        return self.tree_model.rows_by_group[worst].path if is_bad and worst is not None else None

    def apply_filter(self, row_filter: RowFilter | None) -> None:
        """Applies a filter to the rows; None removes the filter. `update_row_values` applies the filter again to new
        values.

        The filter tests `share_values`.
        """
        self.row_filter = row_filter
        if row_filter is None:
            self.matches = None
            return
        config, shares = self.session.config, self.share_values.shares
        self.matches = set()
        for row in self.tree_model.rows_by_group.values():
            share = shares.get(row.group.name)
            item = FilterableGroup(
                row.group,
                self.tree_model.search_text(row),
                share.fraction if share is not None else None,
                config.precision_of(row.group),
                row.group.name in config.groups_fixed_by_rule,
            )
            if all(test(item) for test in row_filter.tests):
                self.matches.add(row.group.name)

    def reveal_group(self, group_name: str) -> None:
        """Opens the rows that hide a fusion group: its scopes in the tree, and the row of small shares."""
        if self.view is not LayerListView.WORST:
            self.opened_paths = self.opened_paths | {scope.path for scope in self.tree_model.ancestors[group_name]}
        self.reveal_folded_group(group_name)

    def reveal_folded_group(self, group_name: str) -> None:
        """Opens the row of small shares if it represents a fusion group."""
        if group_name in self._small_groups.get(self.view, ()):
            self.opened_paths = self.opened_paths | {SMALL_SHARES_KEY}

    def build_visible_rows(self) -> list[VisibleRow]:
        """Returns the visible rows; the identical list object if nothing has changed since the last call."""
        small_groups = self._small_groups.get(self.view, frozenset())
        sources = (self.view, self.opened_paths, self.sort_values, self.matches, self._leading_groups, small_groups)
        if self._rows is None or sources != self._row_sources:
            self._row_sources, self._rows = sources, self._list_rows(self.opened_paths, small_groups)
        return self._rows

    def _list_rows(self, opened_paths: set[str], small_groups: Collection[str] = ()) -> list[VisibleRow]:
        model, values, matches = self.tree_model, self.sort_values, self.matches
        if self.view is LayerListView.WORST:
            return model.list_worst_first_rows(opened_paths, values, matches, self._leading_groups, small_groups)
        return model.list_tree_rows(opened_paths, values, matches, self._has_additive_sort_values, small_groups)

    def find_next_bad_group(self, current_row: VisibleRow | None, includes_current: bool = False) -> str | None:
        """Returns the name of the next bad group in the list, and continues at its beginning.

        None if no group is bad.

        Args:
            current_row: The row from which the search starts. Groups inside a scope come after it.
            includes_current: If True, the next group may be that of the current row.
        """
        lines = self._list_rows({scope.path for scope in self.tree_model.scopes})
        start_key = current_row.key.partition("\0")[0] if current_row is not None else ""  # of the row around a node
        start = next((index for index, line in enumerate(lines) if line.key == start_key), -1)
        bad_groups = {
            index: line.row.group.name
            for index, line in enumerate(lines)
            if isinstance(line.row, GroupRow) and line.row.group.name in self.row_values.bad_group_names
        }
        following = [index for index in bad_groups if index > start or (includes_current and index == start)]
        return bad_groups[(following or list(bad_groups))[0]] if bad_groups else None


def _find_small_groups(row_values: RowValues) -> dict[LayerListView, frozenset[str]]:
    """Returns the groups that one row represents, by view."""
    return {
        LayerListView.WORST: row_values.small_share_groups,
        LayerListView.TREE: row_values.small_groups_without_constants,
    }


def _share_sample_count_text(layer_list: LayerList) -> str:
    """Returns on how many samples shares were measured, such as "8 to 32 samples"; "" for all samples, or without shares.

    Before all shares are measured, the text is the number of measured rows. A note follows if it is not certain which
    share is the largest.
    """
    session, row_values = layer_list.session, layer_list.row_values
    doubt_text = row_values.order_doubt_text(next(iter(row_values.group_names_worst_first), ""))
    if row_values.shares and not row_values.is_final:
        return doubt_text
    sample_counts = [share.samples for share in row_values.shares.values()]
    all_samples = session.count_judging_samples(session.config)
    if not sample_counts or min(sample_counts) >= all_samples:
        return ""
    counts_text = (
        f"{min(sample_counts)} to {max(sample_counts)} samples"
        if min(sample_counts) < max(sample_counts)
        else counted_noun_text(min(sample_counts), "sample")
    )
    return f"{counts_text}, order not certain" if doubt_text else counts_text


def view_title(layer_list: LayerList) -> str:
    """Returns the title of the view. The title of the worst-first view says "worst first" only if all values are known."""
    if layer_list.view is not LayerListView.WORST:
        return str(layer_list.view.value).capitalize()
    row_values = layer_list.row_values
    known_groups = row_values.group_values.keys() | row_values.unknown_groups
    is_worst_first = (
        layer_list.sort_column is SHARE_COLUMN
        and layer_list.sort_values
        and not row_values.is_measuring_shares
        and len(known_groups) >= len(layer_list.tree_model.rows_by_group)
    )
    return "Worst first" if is_worst_first else "All layers"


def layer_list_title(layer_list: LayerList, width: int) -> tuple[str, Line]:
    """Returns the left and the right text of the rule above the layer list. A click on the name of a view shows that
    view.

    The number of samples behind the shares is omitted if it does not fit; the detail pane shows it too.
    """
    model, row_values = layer_list.tree_model, layer_list.row_values
    order_text = (
        f", {'' if layer_list.sort_column is NAME_COLUMN else 'by '}{layer_list.sort_column.order_title}"
        if layer_list.sort_column is not SHARE_COLUMN
        else ""
    )
    if layer_list.view is LayerListView.BLOCKS:  # the blocks have a fixed order
        order_text = ""
    title = f"{shown_key('pane_tree')} {view_title(layer_list)} in {row_values.config_name}{order_text}"
    end = extra_text = ""
    if layer_list.matches is not None:
        end = f" ─ {len(layer_list.matches)} of {len(model.rows_by_group)} match, {shown_key('close')} clears"
    elif row_values.measure is not ColourMeasure.SHARE or row_values.run != "config":
        end = f" ─ {row_values.measure.value}{' error' if row_values.measure is not ColourMeasure.SHARE else ''}"
    elif layer_list.view is LayerListView.BLOCKS:
        end = f" ─ {shown_key('toggle')} on a label: the role everywhere"
    else:
        count = f"{row_values.reducible_group_count} of {len(model.rows_by_group)}"
        capable_text = f"{count} can run {row_values.lowest_precision.label}"
        extra_text = f" ─ {_share_sample_count_text(layer_list) or capable_text}"
    right: Line = [(f"{shown_key('view')}:", "dim@do('view')")]
    for index, view in enumerate(layer_list.available_views):
        right += [
            (" · " if index else " ", "dim"),
            (view.value.removesuffix(" first"), f"dim@show_view('{view.value}')"),
        ]
    if cell_width(title + end + extra_text) + line_width(right) + 8 <= width:
        return title + end + extra_text, right
    return title + end if cell_width(title + end) + 3 <= width else title, right
