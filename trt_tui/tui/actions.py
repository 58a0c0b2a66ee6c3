"""The data of actions: the texts for keys, footer and help. `trt_tui.tui.controllers` perform the actions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

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


def footer_action_line(width: int, bound_actions: Iterable[BoundAction]) -> spans.Line:
    """Returns the footer line: the keys of actions, as many as fit into the width.

    The action of lowest rank is at the right edge. Impossible actions are dim. A click on a key performs the action.
    """
    footer_actions = [(bound_action.action.footer, bound_action)
                      for bound_action in bound_actions
                      if bound_action.action.footer is not None]
    rightmost, *left_actions = (bound_action for _, bound_action in sorted(footer_actions, key=lambda entry: entry[0]))
    click_markup = f"@do('{rightmost.action.id}')"
    right = [(rightmost.action.shown_key, f"key{click_markup}"), (f" {rightmost.action.label} ", click_markup)]
    room = width - spans.line_width(right) - 1
    line: spans.Line = [(" ", "")]
    used = 1
    for bound_action in left_actions:
        key, label = bound_action.action.shown_key, bound_action.action.label
        size = len(key) + 1 + len(label) + 2
        if used + size > room:
            continue
        is_disabled, click_markup = bool(bound_action.disabled_reason()), f"@do('{bound_action.action.id}')"
        line += [(key, f"{'dim' if is_disabled else 'key'}{click_markup}"),
                 (f" {label}  ", f"{'dim' if is_disabled else ''}{click_markup}")]
        used += size
    return spans.justify_line(line, width, right)
