"""The ranges of a group's inputs."""

from __future__ import annotations

from trt_tui.core.precision import Precision
from trt_tui.tui.controllers.controller import Controller, action


class Ranges(Controller):
    """See the module's docstring."""

    def no_group_with_ranges(self) -> str:
        """Why there is no range to choose."""
        if reason := self.no_groups():
            return reason
        group = self.desk.current_group
        if group is None:
            return "choose a single group: ranges belong to one group's inputs"
        if not group.quantizable:
            return f"ranges matter in INT8 and FP8 only: {group.refusals[Precision.INT8]}"
        precision = self.session.config.precision_of(group)
        if precision is Precision.FILE:
            return "it runs as in the file, with the file's own scales: p puts it in INT8 or FP8"
        if not group.ranged(precision):
            return f"it is in {precision.label}: ranges matter in INT8 and FP8 only"
        return "" if self.session.calibration is not None else "no ranges were measured yet"

    @action("r", label="range", help="Next range method for the group's inputs (minmax, percentile, entropy, mse)",
            group="Change", disabled=no_group_with_ranges, footer=15)
    def range(self) -> None:
        """Takes the next method."""
        if (group := self.desk.current_group) is not None:
            method = self.session.next_range(group)
            self.desk.changed()
            self.desk.say(f"input range: {method}", "")
