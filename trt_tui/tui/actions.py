"""The actions of the application as keys, footer, help and palette show them; `trt_tui.tui.controllers` do them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trt_tui.tui import spans


@dataclass(frozen=True)
class Action:
    """One thing the user can do.

    Attributes:
        keys: As Textual names them; the first is the one shown.
        label: A word or two for the footer.
        help: A sentence for help and palette.
        group: The heading it stands under in help.
        footer: Its place in the footer (low comes first and survives in narrow ones), None to leave it out.
    """

    id: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    footer: int | None = None

    @property
    def key(self) -> str:
        """The key that is shown."""
        return key_text(self.keys[0])


@dataclass(frozen=True)
class BoundAction:
    """An action with what does it, and what gives the reason why it cannot be done now, "" where it can."""

    action: Action
    do: Callable[[], None]
    reason: Callable[[], str]


_KEY_TEXTS = {"full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
              "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"}


def key_text(key: str) -> str:
    """A key as it is shown."""
    return _KEY_TEXTS.get(key, key.upper() if key[:1] == "f" and key[1:].isdigit() else key)


def footer_line(width: int, offers: Iterable[BoundAction]) -> spans.Line:
    """The keys that fit, those that can be pressed now brighter than the others; the first stands at the right edge."""
    placed = [(offer.action.footer, offer) for offer in offers if offer.action.footer is not None]
    last, *shown = (offer for _, offer in sorted(placed, key=lambda one: one[0]))
    right = [(last.action.key, "key"), (f" {last.action.label} ", "")]
    room = width - spans.width_of(right) - 1
    line: spans.Line = [(" ", "")]
    used = 1
    for offer in shown:
        key, label = offer.action.key, offer.action.label
        size = len(key) + 1 + len(label) + 2
        if used + size > room:
            continue
        off = bool(offer.reason())
        line += [(key, "dim" if off else "key"), (f" {label}  ", "dim" if off else "")]
        used += size
    return spans.padded(line, width, right)
