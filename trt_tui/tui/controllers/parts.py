"""The parts of the user's metric."""

from __future__ import annotations

from trt_tui.session.parts import parts_table
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.state.parts import page_lines


class Parts(Controller):
    """See the module's docstring."""

    def no_parts(self) -> str:
        """Why there are none."""
        if reason := self.not_open():
            return reason
        if self.session.metric is None:
            return "there is no --metric"
        return "" if parts_table(self.session) else "the metric has no parts, or none is measured yet"

    @action("8", label="classes", help="The metric's parts: FP32, each run, the engine, the worst drop first",
            group="Look", disabled=no_parts)
    def parts(self) -> None:
        """Shows what each part of the metric loses."""
        width = min(90, self.desk.width * 96 // 100 - 5)
        self.desk.app.push_screen(Page(f"{self.session.metric}: its parts", page_lines(self.session, width),
                                       "↑↓ scroll  esc close"))
