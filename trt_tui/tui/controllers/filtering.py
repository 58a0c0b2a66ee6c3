"""The filter of the rows."""

from collections import Counter
from collections.abc import Sequence

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.budget import reading_budget
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.controllers.precision import PRECISION_KEYS, precision_words
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Item, Picker
from trt_tui.tui.state.filters import parse_filter
from trt_tui.tui.state.tree import View
from trt_tui.words import plural

MAX_FILTER_S = 0.5
"""Computing for what was typed, at each key."""

_DEFAULT = "default"
"""The answer to give groups what they have by default."""


class Filtering(Controller):
    """See the module's docstring."""

    @action(label="find", help="Show only what is found: text, !text, /regex/, share>1%, prec:int8, op:conv",
            group="Move", disabled=Controller.not_open, footer=30)
    def filter(self) -> None:
        """Asks for words."""
        self.desk.screen.add_class("-filtering")
        if self.listing.view is View.BLOCKS:
            self.desk.set_view(View.TREE)
        self.desk.filter.focus()

    def changed(self, words: str) -> None:
        """Other words were typed."""
        if not self.listing.is_open:
            return
        self.desk.touched()
        wrong = ""
        try:
            with reading_budget("the filter", seconds=MAX_FILTER_S, next_step="Type a simpler pattern."):
                wanted = parse_filter(words)
                self.listing.filter_by(wanted)
            wrong = wanted.wrong if wanted is not None else ""
        except InputError as error:
            wrong = f"{error.title}: {error.cause}. {error.next_step}"
            self.listing.filter_by(None)
        self.desk.draw_tree()
        self.desk.moved()
        if wrong:
            self.desk.say(wrong)

    def nothing_found(self) -> str:
        """Why nothing can be done with all that was found."""
        if reason := self.not_open():
            return reason
        if self.listing.matches is None:
            return f"{key('filter')} finds rows first"
        return "" if self.listing.matches else "the filter finds nothing"

    @action(label="all found", help="Choose a precision for all rows that the filter finds, as one change",
            group="Change", disabled=nothing_found)
    def all_found(self) -> None:
        """Asks for a precision for all that was found."""
        session = self.session
        matches = self.listing.matches or set()
        groups = [group for group in session.opened.outline.groups if group.name in matches]
        free = [group for group in groups if group.name not in session.config.held]
        kept = "" if free else f"all are kept by rule: {key('rules')} changes the rules"
        items = [Item("0", "as by default", _DEFAULT, kept)]
        for precision, letter in PRECISION_KEYS.items():
            able = [group for group in free if precision in group.allowed]
            if able or precision is not Precision.FILE:
                some = f"  {len(able)} of {len(groups)} can" if len(able) < len(groups) else ""
                items.append(Item(letter, precision_words(precision) + some, precision, "" if able else "none can"))

        def chosen(answer: Precision | str | None) -> None:
            if answer is None:
                return
            before, precision = session.config, answer if isinstance(answer, Precision) else None
            if precision is None:
                session.set_config(before.without_groups(free), free)
            else:
                session.set_precision(free, precision)
            self.desk.changed()
            self.desk.say(acted_on(groups, precision, before), "")

        self.desk.app.push_screen(Picker(f"Precision of {plural(len(groups), 'fused layer')} found", items), chosen)

    def submitted(self) -> None:
        """Enter was pressed after the words."""
        if self.listing.matches is None:
            self.desk.screen.remove_class("-filtering")
        self.desk.tree.focus()


def acted_on(groups: Sequence[Group], precision: Precision | None, before: PrecisionConfig) -> str:
    """What a precision for many groups did, in words: how many have it now, how many were left alone and why.

    Args:
        precision: None for what they have by default.
        before: The config that it was done to.
    """
    why: Counter[str] = Counter()
    for group in groups:
        if group.name in before.held:
            why["kept by rule"] += 1
        elif precision is not None and precision not in group.allowed:
            why[group.refusals.get(precision, "not possible")] += 1
    done = len(groups) - why.total()
    said = f"{plural(done, 'group')} {'as by default' if precision is None else 'in ' + precision.label}"
    left = "; ".join(f"{count}: {reason}" for reason, count in why.most_common(3))
    return f"{said}; {why.total()} left alone ({left})" if why else said
