"""The actions that build an engine, execute the exported network, or show the page of a built engine."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.engines.preview import PREVIEW_GPUS
from trt_tui.core.measure.results import EngineResult
from trt_tui.formatting import EXPORTED_NETWORK
from trt_tui.jobs import events as ev
from trt_tui.tui.config_status import target_value_span
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem, TextPage
from trt_tui.tui.state import engine_page, engine_texts


class BuildController(Controller):
    """The controller of full builds, quick builds and the engine page."""

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
        self._start_build(quick=False)

    def quick_build_disabled_reason(self) -> str:
        """Returns the reason why a quick build is impossible now; "" if it is possible."""
        if reason := self.build_disabled_reason():
            return reason
        if self.session.builder is not None:
            return ""
        return f"ONNX Runtime builds no engine: {shown_key('build')} executes the exported network"

    @register_action(label="quick build", help="Quick build: at optimization level 0, slower than production",
                     group="Work", disabled_reason=quick_build_disabled_reason)
    def quick_build(self) -> None:
        """Builds an engine with the lowest builder effort."""
        self._start_build(quick=True)

    def preview_gpu_disabled_reason(self) -> str:
        """Returns the reason why the GPU of previews cannot be chosen; "" if it can be chosen."""
        if reason := self.network_not_open_reason():
            return reason
        refusal = self.session.preview_refusal
        return "" if self.session.can_preview_engines else (
            f"{refusal.description}. {refusal.next_step}" if refusal is not None else "previews are off (--no-preview)")

    @register_action(label="preview GPU", help="The GPU for which engines are previewed, by its compute capability; "
                     "remembered with the session", group="Work", disabled_reason=preview_gpu_disabled_reason)
    def preview_gpu(self) -> None:
        """Asks for the compute capability of previews, and requests the preview again."""
        session, presenter = self.session, self.presenter
        preview = session.get_run_results("config").preview
        current = session.preview_gpu or (preview.compute_capability if preview is not None else None)
        items = [PickerItem(str(number), f"SM{major}{minor:<3} {title}", (major, minor))
                 for number, ((major, minor), title) in enumerate(PREVIEW_GPUS.items(), 1)]

        def choose_gpu(compute_capability: tuple[int, int]) -> None:
            session.choose_preview_gpu(compute_capability)
            presenter.draw_all()

        self.open_dialog(Picker("Preview the engines of", items, current), choose_gpu)

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

    def _start_build(self, quick: bool) -> None:
        self.session.request_build(quick)
        self.presenter.draw_status_lines()
