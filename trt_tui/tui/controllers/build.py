"""Building engines, and looking at them."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.measure.comparison import EngineResult
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.known import headline
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.state import built, engine_page
from trt_tui.words import EXPORTED_NETWORK


class Builds(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers that tell what a build made."""
        return {ev.Built: self._built, ev.ExportedExecuted: self._executed}

    def _executed(self, event: ev.ExportedExecuted) -> None:
        executed = event.result
        said = f"not executed: {executed.missing}" if executed.missing else \
            f"{headline(self.session, executed.accuracy, False)[0]} by {executed.executor}"
        self.desk.say(f"{EXPORTED_NETWORK}: {said}", "")

    def _built(self, event: ev.Built) -> None:
        self.desk.say(self._told(event.result), "")

    def _told(self, result: EngineResult) -> str:
        alert = built.alert(self.session) if not self.desk.wide else ""
        return f"built: {alert}" if alert else built.result_text(result, self.desk.width - 2)

    @action(label="build", help="Build the config and judge it by its own outputs; without TensorRT, execute its "
            "export", group="Work", disabled=Controller.cannot_build, footer=20)
    def build(self) -> None:
        """Builds in full."""
        self._build(quick=False)

    def no_quick_build(self) -> str:
        """Why there is no quick build."""
        if reason := self.cannot_build():
            return reason
        if self.session.builder is not None:
            return ""
        return f"ONNX Runtime builds no engine: {key('build')} executes the exported network"

    @action(label="quick build", help="Quick build: with the lowest effort, slower than production",
            group="Work", disabled=no_quick_build)
    def quick_build(self) -> None:
        """Builds with the lowest effort."""
        self._build(quick=True)

    def no_engine(self) -> str:
        """Why there is no engine to look at."""
        if reason := self.not_open():
            return reason
        found = self.session.results.fp32_engine is not None or built.shown_engine(self.session) is not None
        if not found and self.session.builder is None:
            return "no TensorRT works here, so there is no engine"
        return "" if found else f"nothing was built yet: {key('build')} builds"

    @action(label="engine", help="What the engine is made of: its layers and times, and what to check",
            group="Look", disabled=no_engine, footer=65)
    def engine(self) -> None:
        """Shows the page of the engine."""
        width = min(90, self.desk.width * 96 // 100 - 5)
        self.desk.app.push_screen(Page(engine_page.page_title(self.session),
                                       engine_page.page_lines(self.session, width)))

    def _build(self, quick: bool) -> None:
        self.session.build(quick)
        self.desk.draw_status()
