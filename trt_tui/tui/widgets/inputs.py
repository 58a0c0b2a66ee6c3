"""Widgets for input: lists with a cursor, and a text field."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.formatting import escape_hidden_characters
from trt_tui.session.session import Session
from trt_tui.tui.keys import DEFAULT_KEYS
from trt_tui.tui.spans import Line
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.widgets.lines import Lines

ValueT = TypeVar("ValueT")


def bind_keys(**actions: str) -> list[BindingType]:
    """Returns bindings of Textual actions to the keys of actions in `trt_tui.tui.keys`, which a key file changes."""
    return [Binding(",".join(DEFAULT_KEYS[action_id]), action, id=action_id) for action_id, action in actions.items()]


class KeyedOptionList(OptionList, inherit_bindings=False):
    """A list whose keys can be changed by the user, because its binding ids are action ids of `trt_tui.tui.keys`."""

    BINDINGS = bind_keys(
        down="cursor_down",
        up="cursor_up",
        page_down="page_down",
        page_up="page_up",
        first="first",
        last="last",
        open="select",
        toggle="select",
    )

    def action_page_up(self) -> None:
        """Moves the cursor up by a page, if the list has room for a line. Without room, Textual 8.2 would fail."""
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]


class ValueList(KeyedOptionList, Generic[ValueT]):
    """A list that shows one line for each value, and keeps its cursor on the same value when it is filled again.

    Attributes:
        values: The values of the lines, in order.
        first_value: The value that the cursor is on after the list was filled for the first time.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self.values: list[ValueT] = []
        self.first_value: ValueT | None = None
        self._shown_lines: list[Line] = []

    def fill_list(self, values: Sequence[ValueT], lines: Sequence[Line]) -> None:
        """Replaces the values and lines of the list, if any line differs."""
        new_lines = list(lines)
        if new_lines == self._shown_lines:
            return
        current = self.selected_value if self.values else self.first_value
        self._shown_lines, self.values = new_lines, list(values)
        self.set_options([Option(_build_line_content(line)) for line in new_lines])
        if self.values:
            self.highlighted = self.values.index(current) if current in self.values else 0

    @property
    def selected_value(self) -> ValueT | None:
        """The value under the cursor; None if the list is empty."""
        if self.highlighted is None or self.highlighted >= len(self.values):
            return None
        return self.values[self.highlighted]


class ConfigList(ValueList[PrecisionConfig]):
    """The list of the configs of a session, newest first. Enter makes the selected config the current one.

    While the list does not have the focus, its cursor is on the current config, which is therefore always visible.
    """

    def show_configs(self, session: Session, header: Lines) -> None:
        """Updates the config list and its header if they changed. With the focus, the cursor stays on its config."""
        titles, rows = config_table(session, header.size.width - 1 or 60)
        header.lines = [titles]
        self.first_value = session.config
        self.fill_list([config for config, _ in rows], [line for _, line in rows])
        if not self.has_focus:
            self.on_blur()

    def on_blur(self) -> None:
        """Moves the cursor back to the current config."""
        if self.first_value in self.values:
            self.highlighted = self.values.index(self.first_value)
            self.scroll_to_highlight()  # the list may have changed its size


def _build_line_content(line: Line) -> Content:
    return Content.assemble(*((escape_hidden_characters(text), _CONTENT_STYLES.get(style, "")) for text, style in line))


_CONTENT_STYLES = {
    "dim": "$quiet",
    "strong": "bold",
    "key": "bold $accent",
    "bad": "bold $error",
    "good": "$success",
    "warn": "$warning",
}


class TextField(Input):
    """A text field with a cursor that does not blink, so that an unchanged screen sends nothing to the terminal.

    A proposed text is selected when the field gets the focus: the first typed character replaces it, and the arrow keys
    keep it. This holds for paths too, because a name without a folder is in the current folder, as the proposed one.
    """

    def on_mount(self) -> None:
        self.cursor_blink = False
