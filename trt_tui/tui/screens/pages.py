"""The pages: the log and explanations, configs, jobs and sessions, help, charts, and what a search found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.report.glossary import Term
from trt_tui.errors import InputError
from trt_tui.formatting import (
    cell_width,
    counted_noun_text,
    escape_hidden_characters,
    find_similar_names,
    suggestion_question,
)
from trt_tui.session.history import MAX_NAME_LENGTH, SessionEntry
from trt_tui.session.jobs import Job
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session import Session
from trt_tui.tui.keys import ACTIONS, get_action_keys, key_text
from trt_tui.tui.screens.dialogs import (
    ConfirmDialog,
    Dialog,
    KeyHints,
    OverlayScreen,
    Prompt,
    ScrollingDialog,
    TablePage,
    TextPage,
    fit_key_hints,
    input_error_text,
)
from trt_tui.tui.spans import Line, clip_line, labelled_lines, wrap_text
from trt_tui.tui.state.charts import CHARTS, ChartFrame, DrawnChart, chart_title_line
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.config_status import config_name, current_config_meets_target
from trt_tui.tui.state.explanations import Explanation, explain_search_option
from trt_tui.tui.state.marks import CLOSED_MARK
from trt_tui.tui.state.rows import RowValues, TreeModel
from trt_tui.tui.state.search_result import (
    BEST_SO_FAR,
    RESULT,
    SearchOption,
    list_search_options,
    search_change_lines,
    search_check_texts,
    search_note_texts,
    search_option_lines,
    search_page_title,
)
from trt_tui.tui.state.status import clock_text, job_table, session_table
from trt_tui.tui.state.summary import outcome_reason_lines
from trt_tui.tui.widgets.inputs import KeyedOptionList, TextField, bind_keys
from trt_tui.tui.widgets.lines import Lines

MAX_LOG_LINES = 5000
"""The maximum number of displayed log lines. Of a longer log, the last lines are displayed."""

_STYLES_BY_LEVEL = {"warning": "warn", "error": "warn", "info": "", "verbose": "dim"}


def merge_equal_messages(log: Sequence[str]) -> list[str]:
    """Returns a log in which a run of equal sentences is one line with their number. Raw lines stay as they are."""
    runs = [(text, len([*run])) for text, run in groupby(log)]
    return [
        line
        for text, count in runs
        for line in ([f"{text} ({count} times)"] if count > 1 and text.endswith(".") else [text] * count)
    ]


def log_lines(log: list[str], width: int) -> list[Line]:
    """Returns the log as styled lines, wrapped to a width. A line that begins with a level such as "warning:" has its
    style."""
    lines: list[Line] = []
    for text in log[-MAX_LOG_LINES:]:
        style = _STYLES_BY_LEVEL.get(text.partition(":")[0], "")
        for line in escape_hidden_characters(text, keep_line_breaks=True).split("\n"):
            parts = [line] if cell_width(line) <= width else wrap_text(line, width)
            lines += [[("" if index == 0 else "  ", ""), (part, style)] for index, part in enumerate(parts)]
    return lines or [[("nothing was logged", "dim")]]


class LogPage(TextPage):
    """The page that shows the log of a session. While its end is visible, the page follows new messages.

    The end has the reasons for the outcomes of all runs in full, since the summary table cuts them.
    """

    def __init__(self, session: Session) -> None:
        super().__init__("Log", self._build_log_lines, starts_at_end=True)
        self.session = session
        self._shown_state: tuple[int, list[str]] | None = None

    def update_lines(self) -> None:
        """Shows the newest log messages and reasons, if there are new ones."""
        state = len(self.session.log), outcome_reason_lines(self.session)
        if state != self._shown_state:
            self._shown_state = state
            super().update_lines()

    def _build_log_lines(self, width: int) -> list[Line]:
        reason_lines = [line for text in outcome_reason_lines(self.session) for line in ([], *log_lines([text], width))]
        return [*log_lines(merge_equal_messages(self.session.log), width), *reason_lines]


class ExplanationDialog(ScrollingDialog):
    """A dialog with the explanation of one value or word.

    Arrow keys move to the next column or row; in the explanation of a word they scroll.

    Args:
        get_explanation: Returns the explanation to show.
        move: Moves to another value, by a number of columns and of rows; None for the explanation of a word.
    """

    box_classes = "explanation"
    BINDINGS = bind_keys(
        quit="dismiss",
        explain="dismiss",
        open="dismiss",
        left="move(-1, 0)",
        right="move(1, 0)",
        up="move(0, -1)",
        down="move(0, 1)",
    )

    def __init__(
        self, get_explanation: Callable[[], Explanation], move: Callable[[int, int], None] | None = None
    ) -> None:
        super().__init__()
        self.get_explanation, self.move = get_explanation, move
        self._line_count = 0

    def update_lines(self) -> None:
        """Shows the explanation of the current value, from its beginning."""
        if not self.is_mounted:
            return
        explanation, scroll, pane = self.get_explanation(), self.query_one(VerticalScroll), self.query_one(Lines)
        width = max(20, scroll.size.width - 2)  # the scrollbar
        lines = explanation.build_lines(width)
        self._line_count = max(self._line_count, len(lines))  # the box grows, and never jumps
        height = min(self._line_count, self.size.height // 2)
        scroll.styles.height, pane.styles.height = height, len(lines)
        pane.lines = lines
        self.query_one(".heading", Static).update(escape_hidden_characters(explanation.heading(width)))
        hints = ["{left}{right} columns", "{up}{down} rows"] if self.move is not None else []
        hints += [f"{'{page_down}' if self.move is not None else '{up}{down}'} more"] * (len(lines) > height)
        self.query_one(KeyHints).show_keys("  ".join([*hints, "{close} close"]))

    def action_move(self, columns: int, rows: int) -> None:
        """Shows the explanation of another value, or scrolls the explanation of a word."""
        if self.move is None:
            self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
            return
        self.move(columns, rows)
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.update_lines()


class ConfigsPage(TablePage[PrecisionConfig]):
    """The page of all configs with their results. Its result is the config that the user chooses."""

    heading, key_hints = "Configs", "{open} selects it  {name} name  {close} close"
    BINDINGS = bind_keys(quit="dismiss", configs="dismiss", name="name")

    def build_table(self, width: int) -> tuple[Line, list[tuple[PrecisionConfig, Line]]]:
        """Implements `TablePage.build_table`. The cursor is on the current config first."""
        header, rows = config_table(self.session, width)
        self.table.first_value = self.session.config
        return header, rows

    def action_name(self) -> None:
        """Asks for a name of the selected config."""
        config, names = self.table.selected_value, self.session.config_names
        if config is None:
            return

        def save_config_name(name: str | None) -> None:
            if name is not None:
                self.session.rename_config(config, name.strip())
                self.update_lines()

        self.app.push_screen(
            Prompt(
                "Name",
                names[config],
                f"at most {MAX_NAME_LENGTH} characters",
                partial(input_error_text, lambda name: names.copy().rename_config(config, name.strip())),
            ),
            save_config_name,
        )


class JobsPage(TablePage[Job]):
    """The page of all jobs, on which the user can stop one job or all jobs.

    Args:
        stop_jobs: Stops jobs, after a question if one of them is old.
    """

    heading, key_hints = "Jobs", "{stop} stops this one  {stop_all} all  {close} close"
    BINDINGS = bind_keys(quit="dismiss", jobs="dismiss", stop="stop", stop_all="stop_all")

    def __init__(self, session: Session, stop_jobs: Callable[[Sequence[Job]], None]) -> None:
        super().__init__(session)
        self.stop_jobs = stop_jobs

    def build_table(self, width: int) -> tuple[Line, list[tuple[Job, Line]]]:
        return job_table(self.session, width)

    def choose_value(self, value: Job) -> None:
        """Does nothing, because the keys of the page stop jobs."""

    def action_stop(self) -> None:
        """Stops the selected job."""
        job = self.table.selected_value
        self.stop_jobs([job] if job is not None else [])
        self.update_lines()

    def action_stop_all(self) -> None:
        """Stops all running and waiting jobs."""
        self.stop_jobs(self.session.pending_requests.unfinished_jobs)
        self.update_lines()


class SessionsPage(TablePage[str]):
    """The page of the saved sessions, the newest first. Its result is the name of the session that the user opens.

    Args:
        show_error: Shows why a session cannot be deleted.
    """

    heading = "Sessions of this network"
    BINDINGS = bind_keys(quit="dismiss", sessions="dismiss", delete_session="delete")

    def __init__(self, session: Session, show_error: Callable[[InputError], None]) -> None:
        super().__init__(session)
        self.show_error = show_error
        self._entries: dict[str, SessionEntry] = {}

    def build_table(self, width: int) -> tuple[Line, list[tuple[str, Line]]]:
        """Implements `TablePage.build_table`, after it read the list of sessions."""
        self._entries = {entry.name: entry for entry in self.session.list_saved_sessions()}
        return session_table(self._entries, self.session.opened_network.outline, max(40, width))

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Shows the name of the selected session, which the command line takes."""
        name = self.table.values[event.option_index]
        self.query_one(KeyHints).show_keys(
            f"{{open}} opens it  {{delete_session}} deletes it  --session {name}  {{close}} close"
        )

    def choose_value(self, value: str) -> None:
        """Closes the page and returns the chosen session; nothing is returned for the current session."""
        self.dismiss(None if self._entries[value].is_own else value)

    def action_delete(self) -> None:
        """Deletes the selected session after a question."""
        if (name := self.table.selected_value) is None:
            return
        if self._entries[name].is_own:
            self._delete_session(name)  # it cannot be deleted, and the error says why
            return

        saved_text = clock_text(self._entries[name].modified_time)
        self.app.push_screen(
            ConfirmDialog(
                f"Delete the session saved at {saved_text}? It cannot be brought back.", "delete it", "keep it"
            ),
            lambda is_confirmed: self._delete_session(name) if is_confirmed else None,
        )

    def _delete_session(self, name: str) -> None:
        try:
            self.session.session_folder.delete_session(name)
        except InputError as error:
            self.show_error(error)
        else:
            self.update_lines()


_TEXT_INDENT = 13
"""The number of cells before the text of an action."""


@dataclass(frozen=True)
class HelpEntry:
    """An entry of the help page: an action, or a word or mark that is explained.

    Attributes:
        names: The keys of the action, or the name of the word.
        value: The id of the action, or the `Term`.
        search_text: The text in which typed words are searched, in lower case.
        disabled_reason: The reason why the action is impossible now; "" if it is possible.
    """

    heading: str
    names: tuple[str, ...]
    explanation: str
    value: str | Term
    search_text: str
    disabled_reason: str = ""

    def is_named(self, text: str) -> bool:
        """Returns True if a text is a key of the action or a name of the word."""
        return text in self.names or isinstance(self.value, Term) and self.value.is_named(text)


class HelpPage(Dialog):
    """A page that lists every action with its keys, its help text and the reason why it is disabled, and every word.

    The result is the id of the chosen action, or the chosen `Term`. If consecutive actions have the same reason, only
    the first shows the reason.

    Args:
        disabled_reason: Returns the reason why an action is impossible now, by its id; "" if it is possible.
        terms: The words, columns and marks that are explained, by their heading.
    """

    heading, box_classes = "Keys, actions, words and marks", "page"
    BINDINGS = bind_keys(
        down="move_cursor('cursor_down')",
        up="move_cursor('cursor_up')",
        page_down="move_cursor('page_down')",
        page_up="move_cursor('page_up')",
        help="dismiss",
    )

    def __init__(self, disabled_reason: Callable[[str], str], terms: Mapping[str, Sequence[Term]]) -> None:
        super().__init__()
        self.entries = [
            HelpEntry(
                action.group,
                tuple(map(key_text, get_action_keys(action.id))),
                action.help,
                action.id,
                f"{action.label} {action.help} {action.group}".lower(),
                disabled_reason(action.id),
            )
            for action in ACTIONS
        ]
        self.entries += [
            HelpEntry(
                heading,
                (term.name,),
                term.explanation,
                term,
                " ".join((heading, term.name, *term.other_names, term.explanation)).lower(),
            )
            for heading, listed in terms.items()
            for term in listed
        ]
        self.headings = list(dict.fromkeys(entry.heading for entry in self.entries))
        self.listed_entries: list[HelpEntry] = []

    def compose_contents(self) -> ComposeResult:
        yield TextField(placeholder="an action, a key, a word or a mark", compact=True)
        yield KeyedOptionList(compact=True)

    def on_mount(self) -> None:
        self.call_after_refresh(self.update_action_list)

    @on(Input.Changed)
    def update_action_list(self) -> None:
        """Lists the actions and words that match all typed words, under headings; similar names if nothing matches.

        A heading with an action or word of exactly the typed name is first.
        """
        choices, typed = self.query_one(KeyedOptionList), self.query_one(Input).value.lower().split()
        name = " ".join(typed)
        self.listed_entries = [
            entry
            for entry in self.entries
            if all((word.removesuffix("s") or word) in entry.search_text or word in entry.names for word in typed)
        ]
        first = {entry.heading for entry in self.listed_entries if entry.is_named(name)}
        self.listed_entries.sort(
            key=lambda entry: (
                entry.heading not in first,
                self.headings.index(entry.heading),
                not entry.is_named(name),
            )
        )
        options, heading, reason = list[Option](), "", ""
        for index, entry in enumerate(self.listed_entries):
            if entry.heading != heading:
                heading, reason = entry.heading, ""
                options.append(Option(Content.styled(heading, "bold"), disabled=True))
            shown_reason = "" if entry.disabled_reason == reason else entry.disabled_reason
            options.append(Option(self._build_prompt(entry, shown_reason), id=str(index)))
            reason = entry.disabled_reason
        if not options:
            terms = [entry.value for entry in self.entries if isinstance(entry.value, Term)]
            similar_names = find_similar_names(
                name, [name for term in terms for name in (term.name, *term.other_names)]
            )
            hint = suggestion_question(similar_names) or "Without a word, the list shows all entries."
            options = [Option(Content(f"Nothing is named {name}. {hint}"), disabled=True)]
        choices.set_options(options)
        choices.highlighted = next((index for index, choice in enumerate(options) if choice.id is not None), None)

    def _build_prompt(self, entry: HelpEntry, shown_reason: str) -> Content:
        names, width = (
            " ".join(entry.names),
            max(20, (self.query_one(KeyedOptionList).size.width or 70) - _TEXT_INDENT - 2),
        )
        reason_lines = wrap_text(f"not now: {shown_reason}", width) if shown_reason else []
        text = [" " * _TEXT_INDENT + line for line in (*wrap_text(entry.explanation, width), *reason_lines)]
        if cell_width(names) > _TEXT_INDENT - 4:  # keys that are too wide get a line above the text
            text.insert(0, f"  {names}")
        else:
            text[0] = f"  {names:<{_TEXT_INDENT - 2}}{text[0].lstrip()}"
        content = Content("\n".join(text))
        return (
            content.stylize("$quiet") if entry.disabled_reason else content.stylize("bold $accent", 2, 2 + len(names))
        )

    def action_move_cursor(self, direction: str) -> None:
        """Moves the cursor of the list while the focus stays in the search field."""
        getattr(self.query_one(KeyedOptionList), f"action_{direction}")()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Shows the id of the selected action, which users write in ``keys.json``."""
        value = self.listed_entries[int(event.option_id)].value if event.option_id is not None else ""
        name = f'  keys.json: "{value}"' if value and isinstance(value, str) else ""
        verb = "explains" if isinstance(value, Term) else "runs"
        keys_text = f"{{up}}{{down}} go  {{open}} {verb} it{name}  {{close}} close"
        self.query_one(KeyHints).show_keys(f"type to find  {keys_text}")

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _choose_highlighted_entry(self) -> None:
        option = self.query_one(KeyedOptionList).highlighted_option
        if option is not None and option.id is not None:
            self.dismiss(self.listed_entries[int(option.id)].value)


_MAX_SCROLL_LINES = 10**6


class ScrolledPage(OverlayScreen):
    """A page over the whole screen: lines that stay, lines that scroll below them, and a line of keys.

    The widgets of the page keep their places, because a new layout would repaint the whole page.
    """

    BINDINGS = bind_keys(
        quit="dismiss",
        page_down="scroll(0, 1)",
        page_up="scroll(0, -1)",
        first=f"scroll({-_MAX_SCROLL_LINES})",
        last=f"scroll({_MAX_SCROLL_LINES})",
    )

    def __init__(self) -> None:
        super().__init__()
        self._top_line = self._page_lines = self._hidden_count = 0

    def build_page(self, width: int, height: int) -> tuple[list[Line], Sequence[Line]]:
        """Returns the lines that stay and the lines that scroll."""
        raise NotImplementedError

    def list_key_hints(self) -> list[str]:
        """Returns the keys of the page as `fit_key_hints` takes them, after the page was built."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield Vertical(Lines(id="page"), Lines(id="page-keys"), classes="box whole")

    def update_lines(self) -> None:
        """Draws the page with the newest values, and its keys."""
        pane = self.query_one("#page", Lines)
        width, height = pane.size.width, pane.size.height
        if width < 20:
            return
        fixed, scrolled = self.build_page(width, height)
        self._page_lines = max(1, height - len(fixed))
        last_top_line = max(0, len(scrolled) - self._page_lines)
        self._top_line = max(0, min(self._top_line, last_top_line))
        self._hidden_count = last_top_line - self._top_line
        pane.lines = [*fixed, *scrolled[self._top_line : self._top_line + self._page_lines]]
        hints = fit_key_hints("  ".join(self.list_key_hints()), width - 2)
        self.query_one("#page-keys", Lines).lines = [[(hints.plain, "dim")]]

    def scroll_by_wheel(self, line_count: int) -> None:
        self._top_line = max(0, self._top_line + line_count)
        self.update_lines()

    def action_scroll(self, line_count: int, page_count: int = 0) -> None:
        """Scrolls down by some lines and pages; negative counts scroll up."""
        self.scroll_by_wheel(line_count + page_count * self._page_lines)


class ChartsPage(ScrolledPage):
    """A page that shows one chart at a time.

    Args:
        get_row_values: Returns the current values of the rows.
        group: The fusion group under the cursor of the main screen.
        chart_index: The index of the first displayed chart.
    """

    BINDINGS = bind_keys(
        right="move_cursor(1)",
        left="move_cursor(-1)",
        open="measure_sample",
        next_picture="change_chart(1)",
        down="scroll(1)",
        up="scroll(-1)",
    )

    def __init__(
        self, session: Session, get_row_values: Callable[[], RowValues], group: FusionGroup | None, chart_index: int = 0
    ) -> None:
        super().__init__()
        self.session, self.get_row_values, self.group, self.chart_index = session, get_row_values, group, chart_index
        self._cursor_index: int | None = None
        self._drawn_chart = DrawnChart([])

    def on_mount(self) -> None:
        self.show_chart(self.chart_index)

    def show_chart(self, chart_index: int) -> None:
        """Shows another chart, and requests the data that the chart needs."""
        self.chart_index, self._cursor_index, self._top_line = chart_index, None, 0
        if (request_data := CHARTS[chart_index].request_data) is not None:
            request_data(self.session)
        self.update_lines()

    def build_page(self, width: int, height: int) -> tuple[list[Line], Sequence[Line]]:
        """Implements `ScrolledPage.build_page`: the titles of the charts, and the chart."""
        frame = ChartFrame(self.session, self.get_row_values(), self.group, width, height - 1, self._cursor_index)
        self._drawn_chart = CHARTS[self.chart_index].draw(frame)
        return [chart_title_line(frame, self.chart_index)], self._drawn_chart.lines

    def list_key_hints(self) -> list[str]:
        is_scrolled = bool(self._hidden_count or self._top_line)
        return [
            f"1-{len(CHARTS)} chart",
            *["{left}{right} sample  {open} measures it alone"] * bool(self._drawn_chart.samples),
            *[f"{{up}}{{down}} scroll, {counted_noun_text(self._hidden_count, 'line')} below"] * is_scrolled,
            "{close} close",
        ]

    def on_key(self, event: events.Key) -> None:
        """Shows the chart whose number was typed."""
        if event.character and event.character in "123456789"[: len(CHARTS)]:
            event.stop()
            self.show_chart(int(event.character) - 1)

    def action_change_chart(self, step: int) -> None:
        """Shows the next chart (step 1) or the previous chart (step -1)."""
        self.show_chart((self.chart_index + step) % len(CHARTS))

    def action_move_cursor(self, step: int) -> None:
        """Moves the cursor of the chart to the next or previous sample."""
        if self._drawn_chart.samples:
            self._cursor_index = (self._drawn_chart.cursor + step) % len(self._drawn_chart.samples)
            self.update_lines()

    def action_measure_sample(self) -> None:
        """Requests a measurement of the selected sample alone."""
        if self._drawn_chart.samples:
            self._cursor_index = self._drawn_chart.cursor
            self.session.request_single_sample(self._drawn_chart.samples[self._cursor_index])
            self.update_lines()


SEARCH_AGAIN = "search again"
"""The result of the page if the user wants to start another search."""

MAX_OPTION_ROWS = 8
"""The maximum number of offered configs that are visible together."""

MIN_HEIGHT_WITH_GAP = 18
"""The minimum height of the page, in lines, at which a blank line is between the checks and the changes."""


def _wrapped_lines(texts: Sequence[str], width: int, style: str = "dim") -> list[Line]:
    return [line for text in texts for line in labelled_lines(" ", text, width, style, label_width=2)]


class SearchResultPage(ScrolledPage):
    """The page of the configs that a search offers, with the changes that the selected config would make.

    Its result is the chosen `SearchOption`, or `SEARCH_AGAIN`. Closed without a result, the page changes nothing.

    Args:
        search_status: The search, which may go on. It must have a best config.
    """

    BINDINGS = bind_keys(
        down="move_cursor(1)",
        up="move_cursor(-1)",
        open="choose",
        find="search_again",
        explain="explain",
        right="open_changes(True)",
        left="open_changes(False)",
    )

    def __init__(self, session: Session, tree_model: TreeModel, search_status: SearchStatus) -> None:
        super().__init__()
        self.session, self.tree_model, self.search_status = session, tree_model, search_status
        self._cursor_index, self._has_cut_checks, self._lists_changes, self._has_folded_changes = 0, False, False, False
        self.options = list_search_options(session, search_status)
        self._place_cursor_on_result()

    def _place_cursor_on_result(self) -> None:
        """Places the cursor on the result of the search, unless only the current config passes."""
        self._cursor_index = next(
            (index for index, option in enumerate(self.options) if option.relation in (RESULT, BEST_SO_FAR)), 0
        )
        outcome = self.selected_search_option.outcome
        if outcome is not None and not outcome.passes and current_config_meets_target(self.session):
            self._cursor_index = 0  # the current config is better than what the search found

    def _list_newest_options(self) -> None:
        """Lists the newest configs of the search. The cursor stays on the best one so far, or keeps its config."""
        selected, self.options = self.selected_search_option, list_search_options(self.session, self.search_status)
        offered = [index for index, option in enumerate(self.options) if index and option.config == selected.config]
        if selected.relation == BEST_SO_FAR or self._cursor_index and not offered:
            self._place_cursor_on_result()
        elif self._cursor_index:
            self._cursor_index = offered[0]
        if self.selected_search_option.config != selected.config:
            self._top_line = 0

    def on_mount(self) -> None:
        """Requests a preview for the cost of the selected config."""
        self._request_preview()

    @property
    def selected_search_option(self) -> SearchOption:
        """The config under the cursor."""
        return self.options[self._cursor_index]

    def build_page(self, width: int, height: int) -> tuple[list[Line], Sequence[Line]]:
        """Implements `ScrolledPage.build_page`: configs and checks, and the changes with the notes."""
        self._list_newest_options()
        title = search_page_title(self.session, self.search_status)
        option_rows = min(MAX_OPTION_ROWS, len(self.options), max(4, height // 4))
        lines: list[Line] = [clip_line([(f" {title}", "strong")], width)]
        lines += search_option_lines(
            self.session, self.tree_model, self.search_status, self.options, self._cursor_index, width, option_rows
        )
        changes = search_change_lines(
            self.session, self.tree_model, self.search_status, self.selected_search_option, width, self._lists_changes
        )
        self._has_folded_changes = any(CLOSED_MARK in text for line in changes for text, *_ in line)
        notes = search_note_texts(self.session, self.search_status)
        checks = search_check_texts(self.session, self.search_status, self.selected_search_option)
        gap: list[Line] = [[]] if height >= MIN_HEIGHT_WITH_GAP else []
        room = height - len(lines) - len(gap) - 1 - min(len(changes) - 1, height // 3)
        style = "dim" if self.search_status.is_target_met else "warn"
        check_lines = _wrapped_lines(checks, width, style)
        self._has_cut_checks = len(check_lines) > room
        if self._has_cut_checks:  # they are in full below the changes
            check_lines = [clip_line([(f"  {text}", style)], width) for text in checks][: max(1, room)]
            notes = [*notes, *checks]
        return (
            [*lines, *check_lines, *gap, changes[0]],
            [*changes[1:], *([[]] if notes else []), *_wrapped_lines(notes, width)],
        )

    def list_key_hints(self) -> list[str]:
        name, is_searching = (
            self.session.config_names.get(self.selected_search_option.config, "it"),
            self.session.is_searching,
        )
        hints = (
            [f"{{open}} takes {name}{', ends the search' if is_searching else ''}"]
            if self.selected_search_option.config != self.session.config
            else []
        )
        hints += [f"{{page_down}} {self._hidden_count} more"] * bool(self._hidden_count)
        hints += ["{last} checks in full"] * bool(self._hidden_count and self._has_cut_checks)
        hints += ["{up}{down} others"] * (len(self.options) > 2)
        hints += ["{right} all changes"] * self._has_folded_changes
        hints += ["{find} searches again"] * (not is_searching)
        hints += ["{page_up} back"] * bool(self._top_line)
        return [*hints, f"{{close}} keeps {config_name(self.session)}"]

    def action_move_cursor(self, step: int) -> None:
        """Moves the cursor to the next or previous offered config."""
        self._cursor_index = max(0, min(len(self.options) - 1, self._cursor_index + step))
        self._top_line = 0
        self.update_lines()
        self._request_preview()

    def action_explain(self) -> None:
        """Explains the value of the selected config."""
        explanation = explain_search_option(self.session, self.search_status, self.selected_search_option)
        self.app.push_screen(ExplanationDialog(lambda: explanation))

    def action_open_changes(self, is_opened: bool) -> None:
        """Switches between one line for each change and one line for each set of like changes."""
        self._lists_changes = is_opened
        self.update_lines()

    def _request_preview(self) -> None:
        if not self.session.is_searching:  # the search uses the builder of the previews
            self.session.request_preview(self.selected_search_option.config, with_effects=False)

    def action_choose(self) -> None:
        """Closes the page with the selected config, unless it is the current one."""
        option = self.selected_search_option
        self.dismiss(option if option.config != self.session.config else None)

    def action_search_again(self) -> None:
        """Closes the page so that another search can start, unless the search still runs."""
        if not self.session.is_searching:
            self.dismiss(SEARCH_AGAIN)
