"""Base classes and common dialogs: errors, questions, lists of choices, prompts, and pages of text."""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.errors import TrtTuiError
from trt_tui.formatting import escape_hidden_characters
from trt_tui.session.session import Session
from trt_tui.tui.keys import DEFAULT_KEYS, LIST_ACTIONS, fill_in_keys, get_action_keys
from trt_tui.tui.spans import Line, choose_fitting_text
from trt_tui.tui.state.marks import CHOSEN_MARK
from trt_tui.tui.table import Column, fit_table
from trt_tui.tui.widgets.inputs import KeyedOptionList, TextField, ValueList, bind_keys
from trt_tui.tui.widgets.lines import WHEEL_LINES, Lines

ValueT = TypeVar("ValueT")


def fit_key_hints(template: str, width: int) -> Content:
    """Returns a line of keys with as many entries as fit, with the keys in their style.

    Braces without the id of an action, which the name of a session may contain, stay as they are.

    Args:
        template: The entries as `KeyHints` takes them. They are omitted from the last but one on.
    """
    entries = template.split("  ")
    while True:
        parts = re.split(r"(\{\w+\})", "  ".join(entries))
        content = Content.assemble(
            *((fill_in_keys(part), "bold $accent") if part[1:-1] in DEFAULT_KEYS else part for part in parts)
        )
        if content.cell_length <= width or len(entries) <= 2:
            return content
        del entries[-2]


class KeyHints(Static):
    """The line of keys of a dialog. It replaces the footer of the main screen.

    If the keys do not fit, entries are omitted from the last but one on.

    Args:
        template: The keys as action ids in braces, each with its effect: ``{open} selects  {close} close``. Two
            blanks separate the entries.
    """

    def __init__(self, template: str = "") -> None:
        super().__init__(classes="hint", markup=False)
        self._template = template

    def show_keys(self, template: str) -> None:
        self._template = template
        self.refresh()

    def render(self) -> Content:
        """Returns as many of the entries as fit, with the keys in the style of keys."""
        return fit_key_hints(self._template, self.content_size.width)


class OverlayScreen(Screen[Any]):
    """A screen that opens over the main screen and closes with Esc.

    Keys typed in one burst can answer a dialog again after it closed, or after another dialog opened over it. Only the
    first answer to the topmost dialog counts.
    """

    BINDINGS = bind_keys(close="dismiss", help="app.show_help")

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Closes the screen with a result, unless another dialog is open over it."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    def on_mount(self) -> None:
        """Draws the contents after their size is known."""
        self.call_after_refresh(self.update_lines)

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_lines)

    def update_lines(self) -> None:
        """Draws the newest contents for the current size; a screen whose contents are fixed draws nothing."""

    def on_mouse_scroll_down(self) -> None:
        self.scroll_by_wheel(WHEEL_LINES)

    def on_mouse_scroll_up(self) -> None:
        self.scroll_by_wheel(-WHEEL_LINES)

    def scroll_by_wheel(self, line_count: int) -> None:
        """Scrolls the scrollable widgets of the screen by a number of lines, wherever the mouse is."""
        for widget in self.query("VerticalScroll, OptionList"):
            widget.scroll_relative(y=line_count, animate=False)


class Dialog(OverlayScreen, ModalScreen[Any]):
    """A box over the main screen, which remains visible around the box.

    After each change of the main screen, both the main screen and the dialog are drawn again.

    Attributes:
        heading: The text above the contents.
        box_classes: The classes of the box besides ``box``.
        key_hints: The keys of the dialog, as `KeyHints` takes them.
    """

    heading = box_classes = key_hints = ""

    def compose(self) -> ComposeResult:
        """Composes the box with heading and contents, and the line of keys."""
        with Vertical(classes=f"box {self.box_classes}"):
            yield Static(escape_hidden_characters(self.heading), classes="heading", markup=False)
            yield from self.compose_contents()
        yield KeyHints(self.key_hints)

    def compose_contents(self) -> ComposeResult:
        """Returns the widgets in the box below its heading."""
        return ()

    def show_note(self, text: str, is_error: bool = True) -> None:
        """Shows a text in the note field of the dialog. The dialog must have such a field."""
        note = self.query_one("#note", Static)
        note.update(Content(escape_hidden_characters(text)))
        note.set_class(is_error, "bad")


class ScrollingDialog(Dialog):
    """A dialog whose content scrolls with the arrow and page keys."""

    BINDINGS = bind_keys(
        down="scroll('down')",
        up="scroll('up')",
        page_down="scroll('page_down')",
        page_up="scroll('page_up')",
        first="scroll('home')",
        last="scroll('end')",
    )

    def compose_contents(self) -> ComposeResult:
        yield VerticalScroll(Lines(), classes="body", can_focus=False)

    def action_scroll(self, direction: str) -> None:
        getattr(self.query_one(VerticalScroll), f"scroll_{direction}")(animate=False)


class ErrorDialog(ScrollingDialog):
    """A dialog with the title, cause and next step of an error. A long cause scrolls above the next step.

    The result is True if the user opens the log.
    """

    BINDINGS = bind_keys(quit="dismiss", open="dismiss", copy="copy", log="dismiss(True)")

    def __init__(self, title: str, cause: str = "", next_step: str = "") -> None:
        super().__init__()
        self.heading, self.texts, self._has_long_cause = title, (title, cause, next_step), "\n" in cause
        self.box_classes = "error wide" if self._has_long_cause else "error"
        self.key_hints = self._key_hint_template("{copy} copy")

    def compose_contents(self) -> ComposeResult:
        _, cause, next_step = self.texts
        causes = [Static(escape_hidden_characters(cause, keep_line_breaks=True), markup=False)] if cause else []
        yield VerticalScroll(*causes, classes="body", can_focus=False)
        if next_step:
            yield Static(escape_hidden_characters(next_step, keep_line_breaks=True), classes="next", markup=False)

    def _key_hint_template(self, copy_hint: str) -> str:
        return f"{'{up}{down} scroll  ' if self._has_long_cause else ''}{{close}} close  {copy_hint}  {{log}} log"

    def action_copy(self) -> None:
        """Copies the text of the error to the clipboard."""
        self.app.copy_to_clipboard("\n".join(part for part in self.texts if part))
        self.query_one(KeyHints).show_keys(self._key_hint_template("copied"))


class ConfirmDialog(Dialog):
    """A dialog with a question that the user answers with y or n. Its result is True for yes, None for no."""

    BINDINGS = bind_keys(quit="dismiss", yes="dismiss(True)", no="dismiss")

    def __init__(self, question: str, yes_text: str = "yes", no_text: str = "no") -> None:
        super().__init__()
        self.heading, self.key_hints = question, f"{{yes}} {yes_text}  {{no}} {no_text}"


@dataclass(frozen=True)
class PickerItem:
    """An entry of a `Picker`.

    Attributes:
        key: The key that chooses the entry; "" if no key does.
        text: The text of the entry; "" for an entry with cells.
        value: The result of the dialog if the entry is chosen.
        refusal: The reason why the entry cannot be chosen; "" if it can.
        is_pending: True for a refused entry that is about to become possible, and is therefore listed.
        cells: The cells of the entry in the columns of the dialog; without cells, the text may take several lines.
    """

    key: str
    text: str
    value: object
    refusal: str = ""
    cells: tuple[str, ...] = ()
    is_pending: bool = False


_PICKER_WIDTH = 90
"""The maximum width of a `Picker` with columns, as in app.tcss."""
_REFUSED_KEY, _MIN_FOLDED_ENTRIES = "x", 3
"""The key that lists the entries that cannot be chosen, and the minimum number of them that one line represents."""
_CELLS_BESIDE_PICKER_ROW = 12
"""The cells of a line that a row of a `Picker` does not have: margin, border, padding, mark, key and scrollbar."""


class Picker(Dialog):
    """A dialog with a list from which the user chooses one entry, by arrow keys and enter or by the key of the entry.

    The result is the value of the entry. One line represents the entries that cannot be chosen, until a key lists them.

    Attributes:
        listed_items: The entries that the list shows.

    Args:
        columns: The columns of the entries with cells. Their lines are never wrapped: the first column is shortened,
            and optional columns are left out.
    """

    BINDINGS = bind_keys(quit="dismiss")

    def __init__(
        self, title: str, items: Sequence[PickerItem], chosen_value: object = None, columns: Sequence[Column] = ()
    ) -> None:
        super().__init__()
        self.heading, self.items, self.chosen_value, self.columns = title, list(items), chosen_value, list(columns)
        self._lists_refused, self.listed_items = False, list[PickerItem]()
        self._move_keys = {name for action in LIST_ACTIONS for name in get_action_keys(action)}
        self.box_classes, self.key_hints = "wide" if self.columns else "", self._key_hint_template()

    def compose_contents(self) -> ComposeResult:
        options = self._make_options()
        if self.columns:
            yield Static(self._fit_rows()[0], id="columns", classes="dim", markup=False)
        yield KeyedOptionList(*options, compact=True)

    def _key_hint_template(self) -> str:
        keys = [item.key for item in self.items if item.key and not item.refusal and item.key not in self._move_keys]
        is_range = "".join(keys) in "123456789"
        key_text = (
            ""
            if not keys
            else f" or {keys[0]}"
            if len(keys) == 1
            else (f" or {keys[0]}-{keys[-1]}" if is_range else " or its key")
        )
        return f"{{open}}{key_text} selects  {{close}} close"

    def _fit_rows(self) -> list[str]:
        """Returns the lines of the column titles and of the entries; "" for entries without cells."""
        room = min(_PICKER_WIDTH, self.app.size.width) - _CELLS_BESIDE_PICKER_ROW
        rows = [[(cell, "") for cell in item.cells] for item in self.listed_items if item.cells]
        header, *lines = ("".join(text for text, _ in line).rstrip() for line in fit_table(self.columns, rows, room))
        return [f"     {header}", *(lines.pop(0) if item.cells else "" for item in self.listed_items)]

    def _make_options(self) -> list[Option]:
        options = []
        refused = [item for item in self.items if item.refusal and not item.is_pending]
        is_folded = not self._lists_refused and len(refused) >= _MIN_FOLDED_ENTRIES
        self.listed_items = [item for item in self.items if not is_folded or item not in refused]
        lines = self._fit_rows()[1:] if self.columns else [""] * len(self.listed_items)
        for item, line in zip(self.listed_items, lines, strict=True):
            mark = CHOSEN_MARK if item.value == self.chosen_value else " "
            item_key = " " if item.key in self._move_keys else item.key
            text = f"{mark} {item_key or ' '}  {line or item.text}" + (f"  {item.refusal}" if item.refusal else "")
            options.append(Option(Content(escape_hidden_characters(text)), disabled=bool(item.refusal)))
        if is_folded:
            options.append(Option(f"     {len(refused)} do not apply: {_REFUSED_KEY} shows why", disabled=True))
        return options

    def replace_items(self, items: Sequence[PickerItem]) -> None:
        """Replaces the entries of the open dialog. The cursor stays on the entry with the same value."""
        choices = self.query_one(KeyedOptionList)
        current = self.listed_items[choices.highlighted].value if choices.highlighted is not None else None
        self.items = list(items)
        choices.set_options(self._make_options())
        self._place_cursor(current)
        if self.columns:
            self.query_one("#columns", Static).update(self._fit_rows()[0])
        self.query_one(KeyHints).show_keys(self._key_hint_template())

    def update_lines(self) -> None:
        """Fits the columns into the current width."""
        if self.columns:
            self.replace_items(self.items)

    def on_mount(self) -> None:
        """Places the cursor on the current value or on the first possible entry."""
        self._place_cursor(self.chosen_value)

    def _place_cursor(self, value: object) -> None:
        possible = [index for index, item in enumerate(self.listed_items) if not item.refusal]
        index = next((index for index in possible if self.listed_items[index].value == value), None)
        self.query_one(KeyedOptionList).highlighted = index if index is not None else next(iter(possible), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.listed_items[event.option_index].value)

    def on_key(self, event: events.Key) -> None:
        """Chooses the entry with the pressed key, or lists the entries that cannot be chosen."""
        if event.character == _REFUSED_KEY:
            self._lists_refused = True
            self.replace_items(self.items)
        for item in self.items:
            if event.character == item.key and not item.refusal:
                event.stop()
                self.dismiss(item.value)
                return


class TablePage(Dialog, Generic[ValueT]):
    """A page with a table. Its result is the value of the line on which the user presses enter."""

    box_classes = "page"

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    @abstractmethod
    def build_table(self, width: int) -> tuple[Line, Sequence[tuple[ValueT, Line]]]:
        """Returns the titles of the columns, and the values with their lines."""

    def compose_contents(self) -> ComposeResult:
        yield Lines(id="table-header")
        yield ValueList[ValueT]()

    @property
    def table(self) -> ValueList[ValueT]:
        return self.query_one(ValueList)

    def update_lines(self) -> None:
        """Shows the current lines of the table."""
        header, rows = self.build_table(max(20, self.table.size.width - 3))
        self.query_one("#table-header", Lines).lines = [header]
        self.table.fill_list([value for value, _ in rows], [line for _, line in rows])

    @on(OptionList.OptionSelected)
    def _choose_selected_line(self, event: OptionList.OptionSelected) -> None:
        self.choose_value(self.table.values[event.option_index])

    def choose_value(self, value: ValueT) -> None:
        """Closes the page with the value of a line."""
        self.dismiss(value)


def input_error_text(check: Callable[[str], object], text: str) -> str:
    """Runs a check of a typed text. Returns the cause and the next step of the error that it raises; "" if it raises
    none."""
    try:
        check(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class Prompt(Dialog):
    """A dialog in which the user types a text. Its result is that text.

    Args:
        get_error_text: Returns the error in a typed text; "" if the text is valid.
    """

    key_hints = "{open} selects  {close} close"

    def __init__(
        self, title: str, value: str, note: str = "", get_error_text: Callable[[str], str] | None = None
    ) -> None:
        super().__init__()
        self.heading, self.value, self.note, self.get_error_text = title, value, note, get_error_text

    def compose_contents(self) -> ComposeResult:
        yield TextField(self.value, compact=True)
        yield Static(escape_hidden_characters(self.note), id="note", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes the dialog with the typed text, or shows the error in it."""
        error_text = self.get_error_text(event.value) if self.get_error_text is not None else ""
        if error_text:
            self.show_note(error_text)
        else:
            self.dismiss(event.value)


class TextPage(ScrollingDialog):
    """A page of lines to read, with a heading. The main screen calls `update_lines` after each draw.

    Args:
        build_lines: Returns the current lines of the page for a width in cells.
        starts_at_end: If True, the page opens at its end, and follows new lines while the end is visible.
    """

    box_classes, key_hints = "page", "{up}{down} scroll  {close} close"
    BINDINGS = bind_keys(quit="dismiss")

    def __init__(self, title: str, build_lines: Callable[[int], list[Line]], starts_at_end: bool = False) -> None:
        super().__init__()
        self.heading, self.build_lines, self.starts_at_end = title, build_lines, starts_at_end
        self._shown_lines: list[Line] | None = None

    def update_lines(self) -> None:
        """Replaces the lines of the page if they changed, and scrolls to the end if the page follows new lines."""
        scroll, pane = self.query_one(VerticalScroll), self.query_one(Lines)
        lines = self.build_lines(max(20, scroll.size.width - 3))
        if lines == self._shown_lines:
            return
        at_end = self.starts_at_end and (self._shown_lines is None or scroll.scroll_offset.y >= scroll.max_scroll_y)
        self._shown_lines = lines
        pane.styles.height = max(1, len(lines))
        pane.lines = lines
        if at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)


class ChoiceField(Static, Generic[ValueT], can_focus=True):
    """A line of a dialog with one of several values, which the left and right keys change.

    Attributes:
        details: A text behind the value, which is left out if the line has no room for all of it.
    """

    BINDINGS = bind_keys(right="change(1)", toggle="change(1)", left="change(-1)")
    index = reactive(0)

    class Changed(Message):
        """A message that the user changed the value of the field."""

    def __init__(self, label: str, values: Sequence[tuple[ValueT, str]], id: str, details: str = "") -> None:
        super().__init__(id=id, classes="setting")
        self.label, self.values, self.details = label, list(values), details

    @property
    def value(self) -> ValueT:
        return self.values[self.index][0]

    def render(self) -> Content:
        arrows = ("◂ ", " ▸") if len(self.values) > 1 else ("  ", "")
        text = f"{self.label:<10} {arrows[0]}{self.values[self.index][1]}{arrows[1]}"
        return Content(choose_fitting_text((f"{text}{self.details}", text), self.content_size.width))

    def action_change(self, step: int) -> None:
        """Changes the value of the field to the next (step 1) or previous (step -1) value."""
        self.index = (self.index + step) % len(self.values)
        self.post_message(self.Changed())


class FieldsDialog(Dialog):
    """A dialog of text fields and choices. The keys for choices are shown only while a choice has the focus.

    Attributes:
        ENTER_TEXT: What the enter key does, for the key hints.
    """

    ENTER_TEXT = ""

    def on_descendant_focus(self) -> None:
        change_text = "  {left}{right} change" if isinstance(self.focused, ChoiceField) else ""
        self.query_one(KeyHints).show_keys(
            f"{{open}} {self.ENTER_TEXT}  {{up}}{{down}} go{change_text}  {{close}} close"
        )
