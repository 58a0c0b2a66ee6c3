"""The actions of the application as keys, footer and help show them; `trt_tui.tui.controllers` do them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trt_tui.tui import keys, spans


@dataclass(frozen=True)
class Action:
    """One thing the user can do.

    Attributes:
        label: A word or two for the footer.
        help: A sentence for help.
        group: The heading it stands under in help.
        footer: Its place in the footer (low comes first and survives in narrow ones), None to leave it out.
    """

    id: str
    label: str
    help: str
    group: str
    footer: int | None = None

    @property
    def key_names(self) -> tuple[str, ...]:
        """Its keys in use, as Textual names them; the first is the one shown."""
        return keys.get_action_keys(self.id)

    @property
    def shown_key(self) -> str:
        return keys.shown_key(self.id)


@dataclass(frozen=True)
class BoundAction:
    """An action with what does it, and what gives the reason why it cannot be done now, "" where it can."""

    action: Action
    perform: Callable[[], None]
    disabled_reason: Callable[[], str]


def footer_action_line(width: int, bound_actions: Iterable[BoundAction]) -> spans.Line:
    """The keys that fit, those that can be pressed now brighter than the others; the first stands at the right edge.

    A click on one does it.
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
