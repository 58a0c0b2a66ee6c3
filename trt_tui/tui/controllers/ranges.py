"""The ranges of inputs: the next method, one that is typed, and methods beside each other."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.calibration.given import amax_given
from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.moves.network_method import network_method
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.methods import best_method, method_rows, ranked_by
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.dialogs import Item, Picker, Prompt
from trt_tui.words import plural, table


def wrong_range(text: str) -> str:
    """What is wrong with a range as it is typed, "" where nothing is."""
    try:
        amax_given(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class Ranges(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that say what ranges became, and that all methods are compared."""
        return {ev.RangesSet: self._set, ev.MethodsCompared: self._compared}

    def _set(self, event: ev.RangesSet) -> None:
        self.desk.changed()
        if network_method(self.session.config, self.session.opened.outline):
            return  # the config's title says it
        shown = [f"{move.label} ({move.set_by})" for move in event.ranges.values()]
        self.desk.say(f"range of {plural(len(shown), 'tensor')}: {shown[0] if len(set(shown)) == 1 else 'set'}", "")

    def _compared(self, event: ev.MethodsCompared) -> None:
        if len(event.rows) == len(RANGE_METHODS):
            self.desk.say(f"calibration methods are compared: {key('methods')} shows them", "")

    def _with_ranges(self) -> list[Group]:
        config = self.session.config
        return [group for group in self.desk.chosen_groups() if group.ranged(config.precision_of(group))]

    def no_group_with_ranges(self) -> str:
        """Why there is no range to choose."""
        if reason := self.no_groups():
            return reason
        if self._with_ranges():
            return "" if self.session.calibration is not None else "no ranges were measured yet"
        group = self.desk.current_group
        if group is None:
            return "no layer here is in INT8 or FP8: ranges matter there only"
        if not group.quantizable:
            return f"ranges matter in INT8 and FP8 only: {group.refusals[Precision.INT8]}"
        precision = self.session.config.precision_of(group)
        if precision is Precision.FILE:
            return f"it runs as in the file, with the file's own scales: {key('precision')} puts it in INT8 or FP8"
        return f"it is in {precision.label}: ranges matter in INT8 and FP8 only"

    @action(label="range", help="Next range method for the group's inputs (minmax, percentile, entropy, mse); "
            "of a scope: type one for all", group="Change", disabled=no_group_with_ranges, footer=15)
    def range(self) -> None:
        """Takes the next method; asks for a range where several groups are chosen."""
        group = self.desk.current_group
        if group is None:
            self._ask()
            return
        method = self.session.next_range(group)
        self.desk.changed()
        self.desk.say(f"input range: {method}", "")

    @action(label="type range", help="Type a range for the inputs: an amax, a method, p99.9, top5-mean",
            group="Change", disabled=no_group_with_ranges)
    def type_range(self) -> None:
        """Asks for a range for the inputs of what is chosen."""
        self._ask()

    def _ask(self) -> None:
        session, groups = self.session, self._with_ranges()
        tensors = list(dict.fromkeys(site.tensor for group in groups
                                     for site in group.ranged(session.config.precision_of(group))))
        known = session.config.ranges.get(tensors[0])
        amax = known.amax if known is not None else session.calibration.ranges.get(tensors[0]) \
            if session.calibration is not None else None
        title = f"Range of {tensors[0]}" if len(tensors) == 1 else f"Range of {plural(len(tensors), 'tensor')}"

        def typed(text: str | None) -> None:
            if text is not None:
                session.set_ranges(tensors, text.strip())
                self.desk.say("its values are being measured" if amax_given(text.strip()) is None else "", "")

        value = f"{amax:.5g}" if amax is not None and len(tensors) == 1 else ""
        self.desk.app.push_screen(Prompt(title, value, "an amax like 2.5, minmax, percentile, entropy, mse, p99.9, "
                                         "top5-mean", lambda text: wrong_range(text.strip())), typed)

    @action(label="methods", help="Calibration methods beside each other; enter takes one for everything",
            group="Work", disabled=Controller.nothing_to_ask)
    def methods(self) -> None:
        """Compares them; once they are compared, shows the table and takes the method that is chosen."""
        session = self.session
        if session.methods is None or not session.methods_known:
            if not session.asked.any(rq.CompareMethods):
                session.compare_methods()
            self.desk.say(f"calibration methods are being compared; {key('methods')} shows them afterwards", "")
            return
        now = network_method(session.config, session.opened.outline)
        now = now or (session.calibration.method if session.calibration is not None else session.options.calib_method)
        header, *rows = table(method_rows(session))
        items = [Item(str(place + 1), text, row.method)
                 for place, (text, row) in enumerate(zip(rows, session.methods.rows, strict=True))]

        def chosen(method: str | None) -> None:
            if method is not None and method != now:
                session.use_method(method)
                self.desk.changed()
                self.desk.say(f"ranges by {method}: {key('undo')} takes them back", "")

        self.desk.app.push_screen(Picker(f"Calibration methods, {best_method(session)} is best by {ranked_by(session)}",
                                         items, now, header=header), chosen)
