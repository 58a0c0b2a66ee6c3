"""The precision of what is chosen."""

from trt_tui.core.engines.preview import together
from trt_tui.core.lowering.releases import needs
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.keep import Keep
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import OFFERED, Precision
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Item, Picker
from trt_tui.words import plural

PRECISION_KEYS = {Precision.FP32: "3", Precision.BF16: "b", Precision.FP16_SUMS_FP32: "s", Precision.FP16: "6",
                  Precision.FP8: "e", Precision.INT8: "8", Precision.INT4: "4", Precision.FILE: "f"}
"""The keys of precisions in lists."""


def precision_words(precision: Precision) -> str:
    """A precision as a list offers it, with what it needs."""
    if precision is Precision.FILE:
        return "as in the file"
    said = ["FP32 sums"] if precision is Precision.FP16_SUMS_FP32 else []
    said += [needed] if (needed := needs(precision)) else []
    return f"{precision.label}  ({': '.join(said)})" if said else precision.label


class Precisions(Controller):
    """See the module's docstring."""

    def all_kept(self) -> str:
        """Why no precision can be chosen."""
        if reason := self.no_groups():
            return reason
        config, groups = self.session.config, self.desk.chosen_groups()
        if any(group.name not in config.held for group in groups):
            return ""
        move = config.of(Keep)[groups[0].name]
        return f"{move.note}: {key('rules')} changes the rules"

    @action(label="FP32", help="FP32 on and off, for a group, a scope or a role of the blocks",
            group="Change", disabled=all_kept, footer=10)
    def toggle(self) -> None:
        """FP32 on and off."""
        self.session.toggle(self.desk.chosen_groups())
        self.desk.changed()

    def shares_nothing(self) -> str:
        """Why no other row goes with this one."""
        if reason := self.no_groups():
            return reason
        if self.listing.figures.preview is None and not self.listing.figures.made:
            return "nothing tells yet which rows share a kernel"
        more = len(self._in_kernel()) > len(self.desk.chosen_groups())
        return "" if more else "it shares its kernel with no other row"

    @action(label="with kernel", help="FP32 on and off for all rows that share this row's kernel", group="Change",
            disabled=shares_nothing)
    def toggle_kernel(self) -> None:
        """FP32 on and off for what shares a kernel."""
        groups = self._in_kernel()
        self.session.toggle(groups)
        self.desk.changed()
        self.desk.say(f"{plural(len(groups), 'row')} of one kernel", "")

    @action(label="up", help="One step up through the precisions in use", group="Change",
            disabled=all_kept, footer=11)
    def higher(self) -> None:
        """One step up."""
        self._step(True)

    @action(label="down", help="One step down through the precisions in use", group="Change",
            disabled=all_kept, footer=12)
    def lower(self) -> None:
        """One step down."""
        self._step(False)

    @action(label="precision", help="Choose a precision from a list", group="Change",
            disabled=all_kept, footer=50)
    def precision(self) -> None:
        """Asks for a precision."""
        groups = self.desk.chosen_groups()
        current = {self.session.config.precision_of(group) for group in groups}
        items = []
        file = (Precision.FILE,) if self.session.opened.outline.has_own_precisions else ()
        for precision in (*OFFERED, *file):
            able = [group for group in groups if precision in group.allowed]
            refused = "" if able else groups[0].refusals.get(precision, "not possible here")
            some = f"  {len(able)} of {len(groups)} can" if able and len(able) < len(groups) else ""
            items.append(Item(PRECISION_KEYS[precision], precision_words(precision) + some, precision, refused))
        title = groups[0].name if len(groups) == 1 else plural(len(groups), "fused layer")

        def chosen(precision: Precision | None) -> None:
            if precision is not None:
                self.session.set_precision(groups, precision)
                self.desk.changed()

        self.desk.app.push_screen(Picker(f"Precision of {title}", items,
                                         next(iter(current)) if len(current) == 1 else None), chosen)

    def no_barrier(self) -> str:
        """Why no fusion barrier can be put here."""
        if reason := self.no_groups():
            return reason
        group = self.desk.current_group
        if group is None:
            return "choose a single group: a fusion barrier is behind one result"
        return Barrier().refused(self.listing.model.outline, group.tail)

    @action(label="barrier", help="A fusion barrier behind this row on and off: its result is a hidden output",
            group="Change", disabled=no_barrier)
    def barrier(self) -> None:
        """A fusion barrier on and off."""
        group = self.desk.current_group
        if group is None:
            return
        self.session.toggle_barrier(group)
        self.desk.changed()
        on = group.tail in self.session.config.of(Barrier)
        self.desk.say(f"{group.tail} is a hidden output: nothing is fused across it" if on else
                      "the fusion barrier is taken away", "")

    def _in_kernel(self) -> tuple[Group, ...]:
        """The groups that are chosen, and those that share a kernel with one of them."""
        found, outline = self.listing.figures, self.listing.model.outline
        made = found.preview.made if found.preview is not None else found.made
        names = {one.name for group in self.desk.chosen_groups() for one in together(group, made, outline)}
        return tuple(group for group in outline.groups if group.name in names)

    def _step(self, up: bool) -> None:
        before = self.session.config
        self.session.step(self.desk.chosen_groups(), up)
        self.desk.changed()
        if self.session.config == before:
            self.desk.say("that is the highest precision" if up else self._why_not_lower())

    def _why_not_lower(self) -> str:
        group = self.desk.current_group
        lowest = self.session.config.ladder[0]
        if group is not None and lowest in group.refusals:
            return f"no lower: {group.refusals[lowest]}"
        return "that is the lowest precision"
