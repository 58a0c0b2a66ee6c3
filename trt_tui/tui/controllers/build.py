"""The actions that build an engine, execute the exported network, or show the page of a built engine."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.measure.results import EngineResult
from trt_tui.formatting import EXPORTED_NETWORK
from trt_tui.jobs import events as ev
from trt_tui.tui.config_status import target_value_span
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import TextPage
from trt_tui.tui.state import engine_page, engine_texts


class BuildController(Controller):
    """The controller of builds and of the engine page."""

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handlers that show the result of a build or of an executed export in the status line."""
        return {ev.EngineBuilt: self._show_build_result, ev.ExportedFileExecuted: self._show_export_result}

    def _show_export_result(self, event: ev.ExportedFileExecuted) -> None:
        exported_run = event.result
        if exported_run.missing_reason:
            self.presenter.show_message(
                f"{EXPORTED_NETWORK} not executed, {shown_key('log')} shows why: {exported_run.missing_reason}")
            return
        value = target_value_span(self.session, exported_run.accuracy, False)[0]  # first, so that it is never cut
        self.presenter.show_message(f"{value}: {EXPORTED_NETWORK} by {exported_run.executor_name}", "")

    def _show_build_result(self, event: ev.EngineBuilt) -> None:
        self.presenter.show_message(self._build_result_text(event.result), "")

    def _build_result_text(self, engine_result: EngineResult) -> str:
        alert = engine_texts.engine_alert_text(self.session) if not self.presenter.is_wide_screen else ""
        return f"built: {alert}" if alert else engine_texts.build_result_text(engine_result, self.presenter.screen_width
                                                                              - 2)

    @register_action(
        label="build",
        help="Build the config and measure its accuracy and latency; without TensorRT, execute its export",
        group="Work", disabled_reason=Controller.build_disabled_reason, footer=20)
    def build(self) -> None:
        self.session.request_build()
        self.presenter.draw_status_lines()

    def engine_page_disabled_reason(self) -> str:
        """Returns the reason why the page of the engine cannot be shown; "" if it can be shown."""
        if reason := self.network_not_open_reason():
            return reason
        has_engine = self.session.results.fp32_engine is not None or engine_texts.find_shown_engine(
            self.session) is not None
        if not has_engine and self.session.builder is None:
            return "no TensorRT works here, so there is no engine"
        return "" if has_engine else f"nothing was built yet: {shown_key('build')} builds"

    @register_action(label="engine", help="The engine: its layers, their times, and what to check",
                     group="Look", disabled_reason=engine_page_disabled_reason, footer=65)
    def engine(self) -> None:
        width = min(90, self.presenter.screen_width * 96 // 100 - 5)
        lines = engine_page.engine_page_lines(self.session, width)
        self.open_dialog(TextPage(engine_page.engine_page_title(self.session), lines))
