"""The page of pictures."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.tui import config_status
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.charts import ChartsPage


class ChartController(Controller):
    """See the module's docstring."""

    _chart_index = 0

    def charts_disabled_reason(self) -> str:
        """Why there is no picture."""
        return self.network_not_open_reason() or ("" if self.layer_list.has_row_values else "nothing was measured yet")

    @register_action(label="pictures", help="Pictures: values and channels, share over depth, errors over samples, "
                     "accuracy against latency, engine layers, classes, stages, warnings", group="Look",
                     disabled_reason=charts_disabled_reason)
    def pictures(self) -> None:
        """Shows the one that was shown last."""
        page = ChartsPage(self.session, lambda: self.layer_list.row_values, self.presenter.current_group,
                          self._chart_index)

        def apply_chart_choice(config_or_group: PrecisionConfig | str | None) -> None:
            self._chart_index = page.chart_index
            if isinstance(config_or_group, str):
                self.presenter.go_to_group(config_or_group)
            elif config_or_group is not None and config_or_group != self.session.config:
                self.session.set_config(config_or_group)
                self.presenter.handle_config_change()
                self.presenter.show_message(
                    f"{config_status.config_name(self.session)}, {shown_key('undo')} takes it back", "")

        self.presenter.app.push_screen(page, apply_chart_choice)
