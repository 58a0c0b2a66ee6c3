"""Small dialogs: an error, a question, a list to choose from, a line to type; and a line of a dialog with a choice."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.tui.keys import PLACES, key, keys, worded
from trt_tui.tui.spans import Line
from trt_tui.tui.widgets.choices import Choices
from trt_tui.tui.widgets.field import Field
from trt_tui.tui.widgets.lines import WHEEL, Lines
from trt_tui.words import visible

V = TypeVar("V")

CLOSE = Binding("escape", "close", id="close")
"""The ids of bindings are names of `trt_tui.tui.keys`, so that a user's file changes them."""
QUIT = Binding("q", "close", id="quit")


class Answered(Screen[Any]):
    """What stands over the main screen, and Esc closes.

    Keys that were typed in one burst can answer it again after it has gone, or after another dialog came over it: only
    the first answer of the topmost one counts.
    """

    BINDINGS = [CLOSE]

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Closes it with an answer, unless another dialog is over it."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    def action_close(self) -> None:
        """Closes it without an answer."""
        self.dismiss(None)

    def on_mouse_scroll_down(self) -> None:
        """The wheel, wherever the pointer is."""
        self.wheel(WHEEL)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.wheel(-WHEEL)

    def wheel(self, by: int) -> None:
        """Scrolls what can be scrolled by so many lines."""
        for one in self.query("VerticalScroll, OptionList"):
            one.scroll_relative(y=by, animate=False)


class Dialog(Answered, ModalScreen[Any]):
    """A box over the main screen, which stays in sight: it is drawn again, and this over it, whenever it changes."""


_SCROLLS = [Binding("down,j", "scroll('down')", id="down"), Binding("up,k", "scroll('up')", id="up"),
            Binding("pagedown", "scroll('page_down')", id="page_down"),
            Binding("pageup", "scroll('page_up')", id="page_up"), Binding("home", "scroll('home')", id="first"),
            Binding("end", "scroll('end')", id="last")]


class Scrolling(Dialog):
    """A dialog whose body scrolls by keys."""

    BINDINGS = [*_SCROLLS]

    def action_scroll(self, way: str) -> None:
        """Scrolls its body."""
        getattr(self.query_one(VerticalScroll), f"scroll_{way}")(animate=False)


class ErrorDialog(Scrolling):
    """What went wrong, why, and what to do now; a long cause scrolls above the next step.

    Dismisses with True where the log is asked for.
    """

    BINDINGS = [CLOSE, QUIT, Binding("enter", "close", id="open"), Binding("y", "copy", id="copy"),
                Binding("o", "log", id="log")]

    def __init__(self, title: str, cause: str = "", next_step: str = "") -> None:
        super().__init__()
        self.parts = (title, cause, next_step)

    def compose(self) -> ComposeResult:
        """Its parts."""
        title, cause, next_step = self.parts
        with Vertical(classes="box wide error" if self._long else "box error"):
            yield Static(visible(title), classes="heading bad", markup=False)
            with VerticalScroll(classes="body", can_focus=False):
                if cause:
                    yield Static(visible(cause, lines=True), markup=False)
            if next_step:
                yield Static(visible(next_step, lines=True), classes="next", markup=False)
            yield Static(self._hint(worded("{copy} copy")), classes="hint")

    @property
    def _long(self) -> bool:
        return "\n" in self.parts[1]

    def _hint(self, copy: str) -> str:
        return worded(f"{'{up}{down} scroll  ' if self._long else ''}{{close}} close  {copy}  {{log}} log")

    def action_copy(self) -> None:
        """Copies what it says."""
        self.app.copy_to_clipboard("\n".join(part for part in self.parts if part))
        self.query_one(".hint", Static).update(self._hint("copied"))

    def action_log(self) -> None:
        """Asks for the log."""
        self.dismiss(True)


class Question(Dialog):
    """A question that y or n answers; dismisses with True or None."""

    BINDINGS = [CLOSE, QUIT, Binding("y", "yes", id="yes"), Binding("enter", "yes", id="open"),
                Binding("n", "close", id="no")]

    def __init__(self, question: str, yes: str = "yes", no: str = "no") -> None:
        super().__init__()
        self.question, self.yes, self.no = question, yes, no

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box"):
            yield Static(visible(self.question), classes="heading", markup=False)
            yield Static(f"{key('yes')} {self.yes}  {key('no')} {self.no}", classes="hint")

    def action_yes(self) -> None:
        """Answers yes."""
        self.dismiss(True)


@dataclass(frozen=True)
class Item:
    """An entry of a list: its key, its text, what it stands for, and why it cannot be taken ("" where it can)."""

    key: str
    text: str
    value: object
    refused: str = ""


class Picker(Dialog):
    """A list to choose from, by arrows and enter or by an entry's key; dismisses with the value.

    Args:
        header: The titles of the entries' columns.
    """

    BINDINGS = [CLOSE, QUIT]

    def __init__(self, title: str, items: Sequence[Item], chosen: object = None, header: str = "") -> None:
        super().__init__()
        self.heading, self.items, self.chosen, self.header = title, list(items), chosen, header
        self._moves = {name for action in PLACES["lists"] for name in keys(action)}

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box wide" if self.header else "box"):
            yield Static(visible(self.heading), classes="heading", markup=False)
            if self.header:
                yield Static(f"     {visible(self.header)}", classes="dim", markup=False)
            options = []
            for item in self.items:
                mark = "●" if item.value == self.chosen else " "
                own = " " if item.key in self._moves else item.key
                text = f"{mark} {own}  {item.text}" + (f"  {item.refused}" if item.refused else "")
                options.append(Option(Content(visible(text)), disabled=bool(item.refused)))
            yield Choices(*options, compact=True)
            yield Static(worded("{open} takes it  {close} close"), classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        choices = self.query_one(Choices)
        index = next((i for i, item in enumerate(self.items) if item.value == self.chosen and not item.refused), None)
        if index is None:
            index = next((i for i, item in enumerate(self.items) if not item.refused), None)
        choices.highlighted = index
        choices.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """An entry was taken."""
        self.dismiss(self.items[event.option_index].value)

    def on_key(self, event: events.Key) -> None:
        """Takes the entry of a key."""
        for item in self.items:
            if event.character == item.key and not item.refused:
                event.stop()
                self.dismiss(item.value)
                return


class Prompt(Dialog):
    """A line to type; dismisses with the text. ``check`` gives what is wrong with it, "" where nothing is."""

    def __init__(self, title: str, value: str, note: str = "", wrong_with: Callable[[str], str] | None = None) -> None:
        super().__init__()
        self.heading, self.value, self.note, self.wrong_with = title, value, note, wrong_with

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box"):
            yield Static(visible(self.heading), classes="heading", markup=False)
            yield Field(self.value, compact=True, select_on_focus=False)
            yield Static(visible(self.note), id="note", markup=False)
            yield Static(worded("{open} takes it  {close} close"), classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed in a line."""
        wrong = self.wrong_with(event.value) if self.wrong_with is not None else ""
        if wrong:
            note = self.query_one("#note", Static)
            note.update(Content(visible(wrong)))
            note.add_class("bad")
        else:
            self.dismiss(event.value)


class Page(Scrolling):
    """A full page of lines to read, with a heading."""

    BINDINGS = [CLOSE, QUIT]

    def __init__(self, title: str, lines: Sequence[Line], at_end: bool = False) -> None:
        super().__init__()
        self.heading, self.page_lines, self.at_end = title, list(lines), at_end

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static(visible(self.heading), classes="heading", markup=False)
            with VerticalScroll(classes="body", can_focus=False):
                lines = Lines(self.page_lines)
                lines.styles.height = max(1, len(self.page_lines))
                yield lines
            yield Static(worded("{up}{down} scroll  {close} close"), classes="hint")

    def on_mount(self) -> None:
        """Fills it and gives the keys to where they are wanted."""
        if self.at_end:
            self.query_one(VerticalScroll).scroll_end(animate=False)

    @property
    def text(self) -> str:
        """What stands on it, without styles."""
        return self.query_one(Lines).text


class Following(Page):
    """A page of what goes on; whoever draws the main screen tells it to follow.

    While its end is in sight it follows what comes there, if it began ``at_end``.
    """

    def __init__(self, title: str, at_end: bool = False) -> None:
        super().__init__(title, [], at_end)
        self._shown: list[Line] | None = None

    @abstractmethod
    def lines_now(self, width: int) -> list[Line]:
        """What it is to show in lines of so many cells."""

    def on_mount(self) -> None:
        """Fills it once its size is known."""
        self.call_after_refresh(self.follow)

    def follow(self) -> None:
        """Shows what there is now."""
        scroll, pane = self.query_one(VerticalScroll), self.query_one(Lines)
        lines = self.lines_now(max(20, scroll.size.width - 3))
        if lines == self._shown:
            return
        at_end = self.at_end and (self._shown is None or scroll.scroll_offset.y >= scroll.max_scroll_y)
        self._shown = lines
        pane.styles.height = len(lines)
        pane.lines = lines
        if at_end:
            self.call_after_refresh(scroll.scroll_end, animate=False)


class Setting(Static, Generic[V], can_focus=True):
    """One line with a choice that the left and right keys change."""

    BINDINGS = [Binding("right,l", "change(1)", id="right"), Binding("space", "change(1)", id="toggle"),
                Binding("left,h", "change(-1)", id="left")]

    class Changed(Message):
        """Another value was chosen."""

    def __init__(self, label: str, values: Sequence[tuple[V, str]], id: str) -> None:
        super().__init__(id=id, classes="setting")
        self.label, self.values, self.index = label, list(values), 0

    @property
    def value(self) -> V:
        """What is chosen."""
        return self.values[self.index][0]

    def choose(self, value: V) -> None:
        """Takes one of the values, without a message."""
        self.index = [one for one, _ in self.values].index(value)
        self.refresh()

    def render(self) -> Content:
        """The choice as it is drawn."""
        arrows = ("◂ ", " ▸") if len(self.values) > 1 else ("  ", "")
        return Content(f"{self.label:<10} {arrows[0]}{self.values[self.index][1]}{arrows[1]}")

    def action_change(self, by: int) -> None:
        """Takes another value."""
        self.index = (self.index + by) % len(self.values)
        self.refresh()
        self.post_message(self.Changed())
