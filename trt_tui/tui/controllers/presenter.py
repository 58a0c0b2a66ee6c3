"""The base class of the parts of the main screen: the panes, their selection and drawing, messages and actions."""

from collections.abc import Callable, Sequence
from typing import Any

from textual.screen import Screen
from textual.timer import Timer

from trt_tui.core.network.layer_tree import UngroupedRow
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, NotReadyError, TrtTuiError
from trt_tui.files.reading import limit_reading_resources
from trt_tui.formatting import cell_width
from trt_tui.session.session import Session
from trt_tui.tui.keys import ACTIONS_BY_ID, Precondition, fill_in_keys, shown_key
from trt_tui.tui.screens.dialogs import Dialog, ErrorDialog, OverlayScreen
from trt_tui.tui.spans import Span
from trt_tui.tui.state import summary
from trt_tui.tui.state.columns import choose_list_width, column_title_line, fit_columns
from trt_tui.tui.state.detail import detail_lines, detail_title
from trt_tui.tui.state.layer_list import LayerList, layer_list_title, parse_filter
from trt_tui.tui.state.rows import LayerListView, VisibleRow, sign_legend_text
from trt_tui.tui.state.status import (
    Focus,
    Hint,
    StatusLines,
    first_warning_text,
    footer_action_line,
    next_step_hint,
    status_lines,
)
from trt_tui.tui.textual_internals import ReliableTimers
from trt_tui.tui.widgets.inputs import ConfigList, TextField
from trt_tui.tui.widgets.lines import Lines, TitleRule
from trt_tui.tui.widgets.row_panes import BlockMap, LayerTree

MAX_FILTER_S = 0.5
"""The maximum computing time of a filter, at each key press."""
NOTICE_DURATION_S = 8.0
"""The display time of a notice. The hint replaces the notice afterwards."""

MIN_CURSOR_REST_S = 0.15
"""The time without a move of the cursor or a change of the config before the detail pane shows the row under the cursor
and the rows are sorted."""


class Presenter(ReliableTimers, Screen[None]):
    """The panes of the main screen, with the methods that draw them, show messages and perform actions.

    Its subclasses perform the actions of one area each, and `MainScreen` inherits from all of them.

    Attributes:
        layer_list: The contents of the tree and the heat map.
        has_stale_values: True if the values of the rows changed after the last draw.
        layer_tree: The widget of the layer list, for the tree view and the worst-first view.
        filter_input: The text field of the row filter.

    Args:
        quit_app: Ends the application.
    """

    def __init__(self, session: Session, quit_app: Callable[[], None]) -> None:
        super().__init__()
        self.session, self.quit_app = session, quit_app
        self.layer_tree, self.heat_map, self.config_list = (
            LayerTree(id="tree"),
            BlockMap(id="blocks"),
            ConfigList(id="configs"),
        )
        self.filter_input = TextField(
            placeholder="text  !text  /regex/  share>1%  prec:int8  op:conv", id="filter", compact=True
        )
        self.layer_list = LayerList(session)
        self.status = StatusLines()
        self.has_stale_values = False
        self._requested_details: object = None
        self._needs_draw = False
        self._rest_timer: Timer | None = None

    # -- panes --------------------------------------------------------------------------------------------------

    @property
    def screen_width(self) -> int:
        """The width of the screen in cells without its last column, which stays blank."""
        return self.size.width

    @property
    def is_wide_screen(self) -> bool:
        """True if the screen has room for the detail pane beside the tree."""
        return self.has_class("-wide")

    @property
    def shown_row_pane(self) -> LayerTree | BlockMap:
        """The pane with rows that is displayed: the layer list or the heat map."""
        return self.heat_map if self.layer_list.view is LayerListView.BLOCKS else self.layer_tree

    def text_pane(self, pane_id: str) -> Lines:
        return self.query_one(f"#{pane_id}", Lines)

    def _draw_title_rule(self, pane_id: str, title: str, right_text: Sequence[Span] = ()) -> None:
        """Draws the rule above a pane, with a title at its left end and a text at its right end."""
        self.query_one(f"#{pane_id}-rule", TitleRule).lines = [[(title, "strong"), *right_text]]

    @property
    def is_heat_map_focused(self) -> bool:
        return self.focused is self.heat_map

    @property
    def current_row(self) -> VisibleRow | None:
        """The row that the detail pane describes; None if no row is selected.

        In the heat map this is the row of the first group under the cursor.
        """
        if self.is_heat_map_focused and self.layer_list.is_network_open:
            names = self.heat_map.cursor_group_names
            if not names:
                return None
            row = self.layer_list.tree_model.rows_by_group[names[0]]
            return VisibleRow(row.path, 0, row)
        return self.layer_tree.current_row

    def list_chosen_groups(self) -> tuple[FusionGroup, ...]:
        """Returns the fusion groups that a change applies to: those of the selected row, or of the selected cell or
        line of the heat map."""
        if not self.layer_list.is_network_open:
            return ()
        model = self.layer_list.tree_model
        if self.is_heat_map_focused:
            return tuple(model.outline.group_by_name[name] for name in self.heat_map.cursor_group_names)
        row = self.layer_tree.current_row
        if row is None:
            return ()
        if row.row is None:
            group = model.outline.group_by_layer.get(row.node)
            return (group,) if group is not None else ()
        return model.list_groups_of_row(row.row)

    @property
    def current_group(self) -> FusionGroup | None:
        """The selected fusion group; None if no group or several groups are selected."""
        groups = self.list_chosen_groups()
        return groups[0] if len(groups) == 1 else None

    # -- actions ------------------------------------------------------------------------------------------------

    def perform_action(self, action_id: str) -> None:
        """Performs an action, or shows why the action is impossible now."""
        title = f"{shown_key(action_id)} {ACTIONS_BY_ID[action_id].label}"
        had_message, self.status.message = self.status.message is not None, None
        if reason := self.disabled_reason(action_id):
            self.show_message(f"{title}: {reason}")
            return
        try:
            getattr(self, f"do_{action_id}")()
        except NotReadyError as error:
            self.show_message(f"{title}: {error.title}. {error.next_step}")
        except TrtTuiError as error:
            self.show_error(error)
        if had_message and self.status.message is None:
            self.draw_status_lines()

    def disabled_reason(self, action_id: str) -> str:
        """Returns the reason why an action is impossible now; "" if it is possible."""
        refuse: Callable[[], str] = getattr(self, f"refuse_{action_id}", str)
        return self.unmet_precondition_reason(ACTIONS_BY_ID[action_id].precondition) or refuse()

    def unmet_precondition_reason(self, precondition: Precondition) -> str:
        """Returns the reason why the precondition of an action is not met; "" if it is met."""
        session, row = self.session, self.current_row
        if precondition is Precondition.NOTHING:
            return ""
        if not self.layer_list.is_network_open:
            return "the network is not open yet"
        if precondition is Precondition.ROW:
            return "" if row is not None else "no row is chosen"
        if precondition is Precondition.GROUPS and not self.list_chosen_groups():
            row_reason = row.row.refusal_reason if row is not None and isinstance(row.row, UngroupedRow) else ""
            return row_reason or "this row has no selectable precision"
        if precondition in (Precondition.SAMPLES, Precondition.BUILDER) and session.data_summary is None:
            return "no samples: reopen with --data"
        if precondition is Precondition.BUILDER and session.is_searching and session.builder is not None:
            return f"a search is going on, which builds too: {shown_key('stop')} stops it"
        if precondition is Precondition.BUILDER and session.is_building:
            return f"a build is going on: {shown_key('stop')} stops it"
        return ""

    def open_dialog(self, dialog: OverlayScreen, handle_answer: Callable[[Any], None] = lambda answer: None) -> None:
        """Shows a dialog or a page, and passes its answer to a function, whose error is shown.

        A dialog closed without an answer calls nothing.
        """

        def handle_dialog_answer(answer: Any) -> None:
            try:
                if answer is not None:
                    handle_answer(answer)
            except TrtTuiError as error:
                self.show_error(error)

        self.app.push_screen(dialog, handle_dialog_answer)

    def move_cursor(self, steps: int = 0, pages: int = 0) -> None:
        """Moves the cursor of the focused list of rows by some rows and pages."""
        self.layer_list.is_cursor_placed = True
        if self.is_heat_map_focused:
            self.heat_map.move_cursor(down=steps + pages * self.layer_tree.page_size)
        else:
            self.layer_tree.move_cursor(steps + pages * self.layer_tree.page_size)

    def handle_config_change(self) -> None:
        """Redraws the screen after a change of the current config. The rows are sorted once the user stops typing."""
        self.layer_list.is_cursor_placed = True
        self._start_rest_timer()
        self.draw_all()

    def show_message(self, text: str, style: str = "warn") -> Span:
        """Shows a message in the status line until the next key press, and returns the message."""
        message = self.status.message = (text, style)
        self.draw_status_lines()
        return message

    def show_notice(self, text: str) -> None:
        """Shows a message until the next key press, for at most `NOTICE_DURATION_S`. Then the hint is shown again."""
        message = self.show_message(text, "")
        self.set_timer(NOTICE_DURATION_S, lambda: self.clear_message(message))

    def clear_message(self, message: Span) -> None:
        """Removes a message from the status line if it is still displayed."""
        if self.status.message is message:
            self.status.message = None
            self.draw_status_lines()

    def show_error(self, error: TrtTuiError) -> None:
        """Shows an error dialog with title, cause and next step, from which the user can open the log."""
        self.open_dialog(ErrorDialog(error.title, error.cause, error.next_step), lambda _: self.perform_action("log"))

    def set_view(self, view: LayerListView) -> None:
        """Changes the view of the layer list. The caller must draw the new view."""
        self.layer_list.view = view
        self.set_class(view is LayerListView.BLOCKS, "-blocks")

    def zoom_pane(self, pane_name: str) -> None:
        """Gives one pane the whole room for panes: "list" or "detail"; "" restores the normal layout."""
        for name in ("list", "detail"):
            self.set_class(name == pane_name, f"-zoom-{name}")
        self.draw_after_layout()

    @property
    def zoomed_pane_name(self) -> str:
        """The name of the pane that has the whole room: "list" or "detail"; "" in the normal layout."""
        return next((name for name in ("list", "detail") if self.has_class(f"-zoom-{name}")), "")

    @property
    def focused_screen_part(self) -> Focus:
        """The part of the main screen that receives the keys."""
        focused = self.focused
        if focused is self.filter_input:
            return Focus.FILTER
        if self.zoomed_pane_name == "detail":
            return Focus.DETAIL
        if focused is self.config_list:
            return Focus.CONFIGS
        return Focus.BLOCKS if focused is self.heat_map else Focus.LIST

    def go_to_group(self, group_name: str) -> None:
        """Moves the cursor of the tree to a group and focuses the tree.

        If a filter, another view or closed rows hide the group, they are changed so that it is visible.
        """
        if self.layer_list.matches is not None and group_name not in self.layer_list.matches:
            self.clear_filter()
        if self.layer_list.view is LayerListView.BLOCKS:
            self.set_view(LayerListView.TREE)
        self.layer_tree.focus()
        self.layer_list.reveal_group(group_name)
        self.draw_layer_tree(self.layer_list.tree_model.rows_by_group[group_name].path)
        self.handle_cursor_move()

    def clear_filter(self) -> None:
        """Removes the row filter. The caller must draw the layer list."""
        self.remove_class("-filtering")
        self.layer_list.apply_filter(None)
        self.filter_input.value = ""

    def filter_rows(self, text: str) -> str:
        """Filters the rows by a text. Returns a message if the text is not a valid filter, else "".

        The caller must draw the layer list.
        """
        try:
            with limit_reading_resources("the filter", max_seconds=MAX_FILTER_S, next_step="Type a simpler pattern."):
                row_filter = parse_filter(text)
                self.layer_list.apply_filter(row_filter)
            return row_filter.error_text if row_filter is not None else ""
        except InputError as error:
            self.layer_list.apply_filter(None)
            return f"{error.title}: {error.cause}. {error.next_step}"

    # -- following the cursor -----------------------------------------------------------------------------------

    @property
    def is_cursor_resting(self) -> bool:
        """True if neither cursor nor config has changed for at least `MIN_CURSOR_REST_S`."""
        return self._rest_timer is None

    def handle_cursor_move(self) -> None:
        """Stops the details of other rows, and starts the rest timer; at its end, the detail pane shows the row."""
        self.session.stop_details_of_other_groups(self.current_group)
        self.layer_list.is_cursor_placed = True
        self.text_pane("detail").top_line = 0
        self._start_rest_timer()
        self._draw_hint_and_footer()

    def _start_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.stop()
        self._rest_timer = self.set_timer(MIN_CURSOR_REST_S, self._handle_cursor_rest)

    def _handle_cursor_rest(self) -> None:
        self._rest_timer = None
        group = self.current_group
        if group is not None and self.session.data_summary is not None:
            self._requested_details = (group.name, self.session.config)
            self.session.request_group_details(group)
        if self.layer_list.is_sort_due:
            self.draw_all()
        else:
            self.draw_detail_pane()
            self._draw_rule_above_jobs()

    def _request_row_details(self) -> None:
        """Requests the details of the row under the cursor if no key press moved the cursor there.

        Before the first cursor movement, nothing is requested while shares are still being measured, because the
        request would delay them.
        """
        group = self.current_group
        if group is None or not self.is_cursor_resting or self._requested_details == (group.name, self.session.config):
            return
        if self.layer_list.is_cursor_placed or (
            self.session.get_run_results("config").shares and not self.session.is_busy
        ):
            self._start_rest_timer()

    @property
    def is_covered_by_page(self) -> bool:
        """True if a full page covers all panes. A change below such a page would make Textual draw the page again.

        A True result also records that the panes need a draw later.
        """
        top_screens = self.app.screen_stack[-1:]
        is_covered = (
            bool(top_screens) and isinstance(top_screens[0], OverlayScreen) and not isinstance(top_screens[0], Dialog)
        )
        self._needs_draw |= is_covered
        return is_covered

    def draw_after_overlay_closed(self) -> None:
        """Draws what changed while a page covered the panes, and the hint that a dialog hid."""
        if self._needs_draw:
            self._needs_draw = False
            self.draw_all()
        else:
            self._draw_hint_and_footer()

    # -- drawing ------------------------------------------------------------------------------------------------

    def draw_all(self, with_row_values: bool = True) -> None:
        """Draws all panes; only cells that differ are written to the terminal."""
        if not self.is_mounted:
            return
        if self.is_covered_by_page and self.layer_list.is_network_open:
            self.layer_list.update_row_values()
            return
        session, width = self.session, self.screen_width
        outline = session.outline
        if outline is not None and self.layer_list.open_network(outline):
            self._requested_details = None
            self.set_class(self.layer_list.tree_model.blocks is not None, "-repeats")
        size = self.outer_size
        self.text_pane("small").lines = [[], [(f" trt-tui needs 60×15, this is {size.width}×{size.height}", "")]]
        with_row_values = with_row_values or not self.layer_list.is_network_open  # a newly opened network has none
        if outline is not None and with_row_values:
            self.has_stale_values = False
            self.layer_list.update_row_values(self.is_cursor_resting)
        self.text_pane("header").lines = [summary.header_line(session, width, self.status.failure is not None)]
        is_beside = (
            self.is_wide_screen and not self.zoomed_pane_name and self.layer_list.view is not LayerListView.BLOCKS
        )
        self.query_one("#left").styles.width = (
            choose_list_width(self.layer_list.row_values, width)
            if is_beside and self.layer_list.is_network_open
            else None
        )
        panel = self.text_pane("verdict")
        panel.lines = summary.summary_lines(session, width, size.height)
        panel.styles.height = len(panel.lines)
        if with_row_values:
            self.draw_layer_tree()
        self.draw_config_list()
        self.draw_detail_pane()
        self.draw_status_lines()

    def draw_after_layout(self) -> None:
        """Draws all panes after the layout is complete."""
        self.call_after_refresh(self.draw_all)

    def draw_config_list(self) -> None:
        """Draws the list of configs, which is displayed beside the layer list if there are several."""
        has_several = len(self.session.config_names.list_configs_newest_first()) > 1
        if has_several is not self.has_class("-configs"):
            self.set_class(has_several, "-configs")
            self.draw_after_layout()
        self.config_list.show_configs(self.session, self.text_pane("configs-header"))

    def draw_layer_tree(self, cursor_key: str | None = None) -> None:
        """Draws the layer list, its title and the heat map.

        Args:
            cursor_key: The key of the row that gets the cursor; None leaves the cursor on its row.
        """
        tree, layer_list = self.layer_tree, self.layer_list
        if not layer_list.is_network_open:
            tree.show_placeholder(self.status.placeholder_lines(self.session.options.model))
            self._draw_title_rule("tree", fill_in_keys("{pane_tree} Tree"))
            return
        self._draw_title_rule(
            "tree", *layer_list_title(layer_list, self.shown_row_pane.size.width or self.screen_width)
        )
        self.draw_layer_tree_header()
        group = self.current_group
        if group is not None and cursor_key is None and layer_list.is_cursor_placed:
            layer_list.reveal_folded_group(group.name)  # the cursor keeps its row
        rows = layer_list.build_visible_rows()
        if not layer_list.is_cursor_placed and cursor_key is None:
            cursor_key = layer_list.initial_cursor_path
            layer_list.is_cursor_placed = cursor_key is not None
            cursor_key = cursor_key or (rows[0].key if rows else None)
        tree.show_rows(rows, layer_list.row_values, layer_list.view is LayerListView.WORST, cursor_key)
        self._request_row_details()
        if not rows:
            tree.show_placeholder([[], [(f"   nothing matches; {shown_key('close')} clears the filter", "dim")]])
        if self.heat_map.display:
            self.heat_map.show_blocks(layer_list.row_values)

    def draw_layer_tree_header(self) -> None:
        """Draws the column titles of the layer list."""
        if self.layer_list.is_network_open:
            row_values = self.layer_list.row_values
            columns = fit_columns(self.layer_tree.row_width or self.screen_width, row_values.has_engines)
            self.text_pane("tree-header").lines = [column_title_line(columns, row_values, self.layer_list.sort_column)]

    def draw_detail_pane(self) -> None:
        """Draws the detail pane for the row under the cursor."""
        if self.is_covered_by_page:
            return
        pane = self.text_pane("detail")
        width, height = pane.size.width or self.screen_width, pane.size.height or 3
        if not self.layer_list.is_network_open:
            pane.lines = []
            self._draw_title_rule("detail", fill_in_keys("{pane_detail} Detail"))
            return
        row = self.current_row
        pane.lines = detail_lines(self.session, self.layer_list.row_values, row, width, height)
        hint_text = (
            ""
            if self.is_wide_screen
            else fill_in_keys("{pane_detail}: less" if self.zoomed_pane_name == "detail" else "{pane_detail}: more")
        )
        key_text = f"{shown_key('pane_detail')} "
        title_width = width - cell_width(key_text) - (cell_width(hint_text) + 7 if hint_text else 3)
        title = f"{key_text}{detail_title(self.layer_list.tree_model, row, title_width)}"
        self._draw_title_rule("detail", title, [(hint_text, "dim")])

    def draw_status_lines(self) -> None:
        """Draws the status lines with the jobs and the hint, the rule above them, and the footer."""
        if not self.is_covered_by_page:
            self._draw_rule_above_jobs()
            self._draw_hint_and_footer()

    def _draw_rule_above_jobs(self) -> None:
        """Draws the rule above the status lines with the first warning and the legend of the visible rows."""
        session = self.session
        warning = first_warning_text(session.shown_warnings) if session.outline is not None else ""
        title = f"! {warning}" if warning else ""
        has_legend = self.layer_list.is_network_open and self.layer_list.view is not LayerListView.BLOCKS
        legend_text = sign_legend_text(self.layer_tree.visible_signs, self.screen_width - cell_width(title) - 10)
        self._draw_title_rule("job", title, [(legend_text, "dim")] if has_legend else [])

    def _draw_hint_and_footer(self) -> None:
        """Draws the parts of the status lines that depend on the cursor and on the focus.

        There is no hint while a dialog is open, which does not take the keys that the hint names. A message stays.
        """
        if self.is_covered_by_page:
            return
        session, group = self.session, self.current_group
        row_values = self.layer_list.share_values if self.layer_list.is_network_open else None
        focused = self.focused
        is_typing = focused is self.filter_input
        cursor_group = group.name if group is not None and focused is self.shown_row_pane else ""
        is_covered = self.app.screen_stack[-1:] != [self]
        shown_hint = Hint() if is_covered else next_step_hint(session, row_values, cursor_group, is_typing)
        self.text_pane("status").lines = status_lines(
            session, self.status, shown_hint, self.screen_width, self.is_wide_screen
        )
        self.text_pane("footer").lines = [
            footer_action_line(
                self.screen_width, self.disabled_reason, self.focused_screen_part, self._list_replaced_action_labels()
            )
        ]

    def _list_replaced_action_labels(self) -> dict[str, str]:
        """Returns the labels of actions whose effect differs now, by action id: the default precision that selected rows
        in FP32 return to, and the result of a search."""
        config = self.session.config
        groups = [group for group in self.list_chosen_groups() if len(group.allowed_precisions) > 1]
        labels = {}
        if groups and all(config.precision_of(group) is Precision.FP32 for group in groups):
            default = config.default_precision_of(groups[0])
            labels = {"toggle": groups[0].precision_label(default)} if default is not Precision.FP32 else {}
        return {**labels, **({"find": "result"} if self.session.has_search_config else {})}
