"""The data of actions: the texts for keys, footer and help. `trt_tui.tui.controllers` perform the actions."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trt_tui.tui import keys, spans


@dataclass(frozen=True)
class Action:
    """A command that the user can give with a key, with its texts for the footer and the help page.

    Attributes:
        label: One or two words for the footer.
        help: A sentence for the help page.
        group: The heading above the action on the help page.
        footer: The rank of the action in the footer; None if the footer does not show the action. Actions of low rank
            come first and remain in a narrow footer.
    """

    id: str
    label: str
    help: str
    group: str
    footer: int | None = None

    @property
    def key_names(self) -> tuple[str, ...]:
        """The current keys of the action, as Textual names them. The program shows the first key."""
        return keys.get_action_keys(self.id)

    @property
    def shown_key(self) -> str:
        return keys.shown_key(self.id)


@dataclass(frozen=True)
class BoundAction:
    """A user action with the controller method that performs it.

    Attributes:
        disabled_reason: Returns the reason why the action is impossible now; "" if it is possible.
    """

    action: Action
    perform: Callable[[], None]
    disabled_reason: Callable[[], str]


class Focus(enum.Enum):
    """The part of the main screen that has the keys. The footer shows the actions of this part."""

    LIST = "list"
    BLOCKS = "blocks"
    DETAIL = "detail"
    CONFIGS = "configs"
    FILTER = "filter"


_FOOTERS: Mapping[Focus, Mapping[str, str]] = {
    Focus.BLOCKS: {"open": "go to row", "toggle": "", "higher": "", "lower": "", "precision": "", "undo": "",
                   "view": "", "explain": "", "next_bad": "", "colour": "", "build": "", "find": "", "quit": ""},
    Focus.DETAIL: {"pane_detail": "less", "next_bad": "", "toggle": "", "higher": "", "lower": "",
                   "range": "", "free": "", "undo": "", "explain": "", "precision": "", "pictures": "charts",
                   "quit": ""},
    Focus.CONFIGS: {"open": "select", "configs": "name", "pane_tree": "list", "undo": "", "build": "", "export": "",
                    "quit": ""},
    Focus.FILTER: {"open": "keep", "close": "clear"}}
"""The actions in the footer by focus, in the order of their ranks, with their labels there; "" for the usual label.

The layer list has the actions with a rank in `Action.footer`."""

_WIDGET_FOCUSES = {Focus.CONFIGS, Focus.FILTER}
"""The parts whose widget performs the action of the enter key itself, so that a click in the footer cannot."""


def footer_action_line(width: int, bound_actions: Mapping[str, BoundAction], focus: Focus = Focus.LIST,
                       current_labels: Mapping[str, str] = MappingProxyType({})) -> spans.Line:
    """Returns the footer line: the keys of the actions of the focused part, as many as fit into the width.

    The help page is at the right edge. Impossible actions are dim. A click on a key performs the action.

    Args:
        current_labels: The labels of actions that do something else now, by action.
    """
    ranked_actions = sorted((bound_action for bound_action in bound_actions.values()
                             if bound_action.action.footer is not None),
                            key=lambda bound_action: bound_action.action.footer or 0)
    rightmost, *left_actions = ranked_actions
    labels = _FOOTERS.get(focus, {})
    if labels:
        left_actions = [bound_actions[action_id] for action_id in labels]
    click_markup = f"@do('{rightmost.action.id}')"
    right = [(rightmost.action.shown_key, f"key{click_markup}"), (f" {rightmost.action.label} ", click_markup)]
    room = width - spans.line_width(right) - 1
    line: spans.Line = [(" ", "")]
    used = 1
    for bound_action in left_actions:
        key = bound_action.action.shown_key
        action_id = bound_action.action.id
        label = labels.get(action_id) or current_labels.get(action_id) or bound_action.action.label
        size = len(key) + 1 + len(label) + 2
        if used + size > room:
            continue
        is_of_widget = focus in _WIDGET_FOCUSES and bound_action.action.id == "open"
        click_markup = "" if is_of_widget else f"@do('{bound_action.action.id}')"
        is_disabled = not is_of_widget and bool(bound_action.disabled_reason())
        line += [(key, f"{'dim' if is_disabled else 'key'}{click_markup}"),
                 (f" {label}  ", f"{'dim' if is_disabled else ''}{click_markup}")]
        used += size
    return spans.justify_line(line, width, right)
