"""The keys and actions: all of them in their groups, filtered by the words that are typed; enter does one."""

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.tui.actions import BoundAction
from trt_tui.tui.keys import key_text, worded
from trt_tui.tui.screens.dialogs import CLOSE, Dialog
from trt_tui.tui.spans import wrap
from trt_tui.tui.widgets.choices import Choices
from trt_tui.tui.widgets.field import Field
from trt_tui.words import cells

_MARGIN = 13
"""Cells before the words of an action."""


class HelpPage(Dialog):
    """Every action once, with its keys, what it does and why it cannot be done now; dismisses with the id of one.

    A reason that several actions in a row have is said at the first of them.

    Args:
        offers: The actions; groups are shown in the order in which their first ones come.
    """

    BINDINGS = [CLOSE, Binding("down", "go('down')", id="down"), Binding("up", "go('up')", id="up"),
                Binding("pagedown", "go('page_down')", id="page_down"),
                Binding("pageup", "go('page_up')", id="page_up")]

    def __init__(self, offers: Iterable[BoundAction]) -> None:
        super().__init__()
        listed = list(offers)
        groups = list(dict.fromkeys(offer.action.group for offer in listed))
        self.offers = sorted(listed, key=lambda one: groups.index(one.action.group))
        self.reasons = {offer.action.id: offer.reason() for offer in self.offers}

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box page"):
            yield Static("Keys and actions", classes="heading")
            yield Field(placeholder="words of an action, or its key", compact=True)
            yield Choices(compact=True)
            yield Static("", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Fills it once its size is known, and gives the keys to where they are wanted."""
        self.query_one(Input).focus()
        self.call_after_refresh(self.show)

    def on_input_changed(self) -> None:
        """Other words were typed."""
        self.show()

    def show(self) -> None:
        """Lists what matches all words, under the headings of the groups."""
        choices = self.query_one(Choices)
        words = self.query_one(Input).value.lower().split()
        found = [offer for offer in self.offers if self._matches(offer, words)]
        options: list[Option] = []
        group = reason = ""
        for offer in found:
            action = offer.action
            if action.group != group:
                group, reason = action.group, ""
                options.append(Option(Content.styled(group, "bold"), disabled=True))
            now = self.reasons[action.id]
            options.append(Option(self._content(offer, "" if now == reason else now), id=action.id))
            reason = now
        choices.set_options(options)
        choices.highlighted = next((index for index, one in enumerate(options) if one.id is not None), None)

    @staticmethod
    def _matches(offer: BoundAction, words: list[str]) -> bool:
        action = offer.action
        names = [key_text(key) for key in action.keys]
        text = f"{action.label} {action.help} {action.group}".lower()
        return all(word in text or word in names for word in words)

    def _content(self, offer: BoundAction, reason: str) -> Content:
        action = offer.action
        width = max(20, (self.query_one(Choices).size.width or 70) - _MARGIN - 2)
        names = " ".join(map(key_text, action.keys))
        lines = wrap(action.help, width)
        if cells(names) > _MARGIN - 4:  # keys that leave no room stand above the words
            text = [f"  {names}", *(" " * _MARGIN + line for line in lines)]
        else:
            text = [f"  {names:<{_MARGIN - 2}}{lines[0]}", *(" " * _MARGIN + line for line in lines[1:])]
        text += [" " * _MARGIN + line for line in (wrap(f"not now: {reason}", width) if reason else ())]
        content = Content("\n".join(text))
        if self.reasons[action.id]:
            return content.stylize("$quiet")
        return content.stylize("bold $accent", 2, 2 + len(names))

    @property
    def text(self) -> str:
        """What is listed, without styles."""
        choices = self.query_one(Choices)
        return "\n".join(str(choices.get_option_at_index(index).prompt) for index in range(choices.option_count))

    def action_go(self, way: str) -> None:
        """Moves the cursor of the list while words are typed."""
        choices = self.query_one(Choices)
        if way.startswith("page"):
            (choices.action_page_down if way == "page_down" else choices.action_page_up)()
        else:
            (choices.action_cursor_down if way == "down" else choices.action_cursor_up)()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The cursor is on another action: its name in a file of keys is told."""
        name = f"   keys.json: \"{event.option_id}\"" if event.option_id is not None else ""
        self.query_one(".hint", Static).update(
            worded("type to find  {up}{down} go  {open} does it  {close} close") + name)

    def on_input_submitted(self) -> None:
        """Enter was pressed behind the words."""
        self._do(self.query_one(Choices).highlighted_option)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """An action was taken."""
        self._do(event.option)

    def _do(self, option: Option | None) -> None:
        if option is not None and option.id is not None:
            self.dismiss(option.id)
