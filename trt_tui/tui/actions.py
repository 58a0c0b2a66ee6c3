"""The actions of the application as keys, footer, help and palette show them; `trt_tui.tui.controllers` do them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trt_tui.tui import keys, spans


@dataclass(frozen=True)
class Action:
    """One thing the user can do.

    Attributes:
        label: A word or two for the footer.
        help: A sentence for help and palette.
        group: The heading it stands under in help.
        footer: Its place in the footer (low comes first and survives in narrow ones), None to leave it out.
    """

    id: str
    label: str
    help: str
    group: str
    footer: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys in use, as Textual names them; the first is the one shown."""
        return keys.keys(self.id)

    @property
    def key(self) -> str:
        """The key that is shown."""
        return keys.key(self.id)


@dataclass(frozen=True)
class BoundAction:
    """An action with what does it, and what gives the reason why it cannot be done now, "" where it can."""

    action: Action
    do: Callable[[], None]
    reason: Callable[[], str]


def footer_line(width: int, offers: Iterable[BoundAction]) -> spans.Line:
    """The keys that fit, those that can be pressed now brighter than the others; the first stands at the right edge.

    A click on one does it.
    """
    placed = [(offer.action.footer, offer) for offer in offers if offer.action.footer is not None]
    last, *shown = (offer for _, offer in sorted(placed, key=lambda one: one[0]))
    do = f"@do('{last.action.id}')"
    right = [(last.action.key, f"key{do}"), (f" {last.action.label} ", do)]
    room = width - spans.width_of(right) - 1
    line: spans.Line = [(" ", "")]
    used = 1
    for offer in shown:
        key, label = offer.action.key, offer.action.label
        size = len(key) + 1 + len(label) + 2
        if used + size > room:
            continue
        off, do = bool(offer.reason()), f"@do('{offer.action.id}')"
        line += [(key, f"{'dim' if off else 'key'}{do}"), (f" {label}  ", f"{'dim' if off else ''}{do}")]
        used += size
    return spans.padded(line, width, right)
