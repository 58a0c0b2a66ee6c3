"""The page that shows the changes of a search result, before it becomes the current config."""

from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Vertical

from trt_tui.formatting import cell_width
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session import Session
from trt_tui.tui.config_status import config_name
from trt_tui.tui.keys import fill_in_keys
from trt_tui.tui.screens.dialogs import OverlayScreen
from trt_tui.tui.spans import Line, clip_line
from trt_tui.tui.state.search_result import (
    BEST_SO_FAR,
    RESULT,
    SearchOption,
    list_search_options,
    search_change_lines,
    search_check_lines,
    search_note_lines,
    search_option_lines,
    search_page_title,
)
from trt_tui.tui.state.tree import TreeModel
from trt_tui.tui.widgets.inputs import bind_keys
from trt_tui.tui.widgets.lines import Lines

SEARCH_AGAIN = "search again"
"""The result of the page if the user wants to start another search."""

MAX_OPTION_ROWS = 8
"""The maximum number of offered configs that are visible together."""

MIN_HEIGHT_WITH_GAP = 18
"""The minimum height of the page, in lines, at which a blank line is between the checks and the changes."""


class SearchResultPage(OverlayScreen):
    """The page of the configs that a search offers, with the changes that the selected config would make.

    Its result is the chosen `SearchOption`, or `SEARCH_AGAIN`. Closed without a result, the page changes nothing. The
    page shows the state of the search when it was opened, so the key to take a config always takes the shown one.

    Args:
        search_status: The search, which may go on. It must have a best config.
    """

    BINDINGS = bind_keys(quit="close", down="move(1)", up="move(-1)", open="take", page_down="scroll(1)",
                         page_up="scroll(-1)", first="scroll_to(0)", last="scroll_to(-1)", find="again")

    def __init__(self, session: Session, tree_model: TreeModel, search_status: SearchStatus) -> None:
        super().__init__()
        self.session, self.tree_model, self._newest = session, tree_model, search_status
        self.search_status = replace(search_status)
        self.options: tuple[SearchOption, ...] = ()
        self._cursor_index = self._top_line = self._page_lines = self._max_top_line = 0
        self._load_newest()

    def _load_newest(self) -> None:
        """Shows the newest state of the search, with the cursor on its result."""
        self.search_status = replace(self._newest)
        self.options = list_search_options(self.session, self.search_status)
        self._cursor_index = next((index for index, option in enumerate(self.options)
                                   if option.relation in (RESULT, BEST_SO_FAR)), 0)
        self._top_line = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="box whole"):
            yield Lines(id="search-result")
            yield Lines(id="search-keys")

    def on_mount(self) -> None:
        """Requests a preview for the cost of the selected config."""
        self._request_preview()

    @property
    def chosen_option(self) -> SearchOption:
        """The config under the cursor."""
        return self.options[self._cursor_index]

    @property
    def text(self) -> str:
        """The text of the page, without styles."""
        return self.query_one("#search-result", Lines).text

    @property
    def _title(self) -> str:
        return search_page_title(self.session, self.search_status, self.has_newer_result)

    @property
    def has_newer_result(self) -> bool:
        """True if the search found a better config or ended after the page was opened."""
        return (self._newest.end_event is not self.search_status.end_event
                or self._newest.best_config != self.search_status.best_config)

    def update_lines(self) -> None:
        """Draws the page with the newest kernels and latencies; its configs stay those that it was opened with."""
        pane = self.query_one("#search-result", Lines)
        width, height = pane.size.width, pane.size.height
        if width < 20:
            return
        option = self.chosen_option
        option_rows = min(MAX_OPTION_ROWS, len(self.options), max(4, height // 4))
        lines: list[Line] = [clip_line([(f" {self._title}", "strong")], width)]
        lines += search_option_lines(self.session, self.tree_model, self.search_status, self.options,
                                     self._cursor_index, width, option_rows)
        changes = search_change_lines(self.session, self.tree_model, self.search_status, option, width)
        notes = search_note_lines(self.session, self.search_status, width)
        checks = search_check_lines(self.session, self.search_status, option, width)
        gap: list[Line] = [[]] if height >= MIN_HEIGHT_WITH_GAP else []
        room = height - len(lines) - len(gap) - 1 - min(len(changes) - 1, height // 3)
        shown_checks = checks
        for max_lines in (3, 1):
            if len(shown_checks) > room:
                shown_checks = search_check_lines(self.session, self.search_status, option, width, max_lines)
        shown_checks = shown_checks[:max(1, room)]
        if shown_checks != checks:  # they are in full below the changes
            notes = [*notes, *checks]
        lines += [*shown_checks, *gap, changes[0]]
        scrolled = [*changes[1:], *([[]] if notes else []), *notes]
        self._page_lines = max(1, height - len(lines))
        self._max_top_line = max(0, len(scrolled) - self._page_lines)
        self._top_line = max(0, min(self._top_line, self._max_top_line))
        pane.lines = [*lines, *scrolled[self._top_line:self._top_line + self._page_lines]]
        hidden_count = self._max_top_line - self._top_line
        self.query_one("#search-keys", Lines).lines = [self._key_line(hidden_count, shown_checks != checks, width)]

    def _key_line(self, hidden_count: int, has_cut_checks: bool, width: int) -> Line:
        name = self.session.config_names.get(self.chosen_option.config, "it")
        current = config_name(self.session)
        end = ", ends the search" if self.session.is_searching else ""
        hints = [f"{{open}} takes {name}{end}"] if self.chosen_option.config != self.session.config else []
        hints += [f"{{close}} keeps {current}"]
        hints += ["{find} shows the newer result"] * self.has_newer_result
        hints += ["{up}{down} others"] * (len(self.options) > 2)
        hints += [f"{{page_down}} {hidden_count} more"] * bool(hidden_count)
        hints += ["{last} checks in full"] * bool(hidden_count and has_cut_checks)
        if not self.has_newer_result and not self.session.is_searching:
            hints += ["{find} searches again"]
        hints += ["{page_up} back"] * bool(self._top_line)
        text = ""
        for hint in map(fill_in_keys, hints):  # without enough room, whole hints are left out
            text += f"  {hint}" if cell_width(text) + cell_width(hint) + 2 <= width else ""
        return [(text[1:], "dim")]

    def scroll_by_wheel(self, line_count: int) -> None:
        self._top_line = max(0, self._top_line + line_count)
        self.update_lines()

    def action_scroll(self, page_count: int) -> None:
        """Scrolls the changes by some pages; negative counts scroll back."""
        self.scroll_by_wheel(page_count * self._page_lines)

    def action_scroll_to(self, line: int) -> None:
        """Scrolls the changes to a line; -1 is the end, with the checks in full."""
        self._top_line = self._max_top_line if line < 0 else line
        self.update_lines()

    def action_move(self, step: int) -> None:
        """Moves the cursor to the next or previous offered config."""
        self._cursor_index = max(0, min(len(self.options) - 1, self._cursor_index + step))
        self._top_line = 0
        self.update_lines()
        self._request_preview()

    def _request_preview(self) -> None:
        if self.session.is_searching:
            return  # the search uses the builder of the previews
        self.session.request_preview(self.chosen_option.config, with_effects=False)

    def action_take(self) -> None:
        """Closes the page with the selected config, unless it is the current one."""
        option = self.chosen_option
        self.dismiss(option if option.config != self.session.config else None)

    def action_again(self) -> None:
        """Shows a newer result; if there is none and the search has ended, closes the page for another search."""
        if self.has_newer_result:
            self._load_newest()
            self.update_lines()
        elif not self.session.is_searching:
            self.dismiss(SEARCH_AGAIN)
