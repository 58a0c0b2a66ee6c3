"""The help page: every action with its keys."""

from __future__ import annotations

from collections.abc import Iterable

from trt_tui.tui.actions import BoundAction, key_text
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.spans import Line, wrap


def help_lines(offers: Iterable[BoundAction], screen_width: int) -> list[Line]:
    """The actions under the headings of their groups, each group once; what cannot be done now is dimmed and says why.

    Args:
        offers: Groups are shown in the order in which their first actions come.
        screen_width: Cells of the screen.
    """
    width = max(20, min(96, screen_width * 96 // 100) - 18)
    offers = list(offers)
    groups = list(dict.fromkeys(offer.action.group for offer in offers))
    lines: list[Line] = []
    group = ""
    for offer in sorted(offers, key=lambda one: groups.index(one.action.group)):
        action = offer.action
        if action.group != group:
            group = action.group
            lines += [[], [(group, "strong")]] if lines else [[(group, "strong")]]
        keys = " ".join(key_text(key) for key in action.keys)
        reason = offer.reason()
        for index, text in enumerate(wrap(action.help, width)):
            lines.append([(f"  {'' if index else keys:<11}", "dim" if reason else "key"),
                          (text, "dim" if reason else "")])
        lines += [[(f"  {'':<11}{text}", "dim")] for text in (wrap(f"not now: {reason}", width) if reason else ())]
    return lines


class HelpPage(Page):
    """See the module's docstring.

    Args:
        offers: The actions, in any order.
        width: Cells of the screen.
    """

    def __init__(self, offers: Iterable[BoundAction], width: int) -> None:
        super().__init__("Keys", help_lines(offers, width), "↑↓ scroll  esc close")
