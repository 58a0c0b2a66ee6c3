"""The configs: taking one up, marking, what differs between two."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import requests
from trt_tui.tui import known
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.configs import ConfigsPage
from trt_tui.tui.screens.dialogs import Page
from trt_tui.tui.state.configs import diff_lines


class Configs(Controller):
    """See the module's docstring."""

    @action(label="configs", help="All configs with their results; enter takes one up again", group="Configs",
            disabled=Controller.not_open, footer=55)
    def configs(self) -> None:
        """Shows all of them on a page."""
        page = ConfigsPage(self.session, self.desk.marks, lambda: self.desk.perform("diff"))
        self.desk.app.push_screen(page, self.take)

    def take(self, config: PrecisionConfig | None) -> None:
        """Takes a config up."""
        if config is not None and config != self.session.config:
            self.session.set_config(config)
            self.desk.changed()

    @action(label="mark A/B", help="Mark a config as A, the next one as B", group="Configs",
            disabled=Controller.not_open)
    def mark(self) -> None:
        """Marks the config under the cursor of the list, else the current one."""
        configs = self.desk.configs
        config = configs.chosen if configs.has_focus and configs.chosen is not None else self.session.config
        letter = self.desk.marks.mark(config)
        self.desk.draw_configs()
        name = known.config_name(self.session, config)
        self.desk.say(f"{name} is {letter}" if letter else f"{name} is no longer marked", "")

    def only_one(self) -> str:
        """Why nothing can differ."""
        return self.not_open() or ("" if len(self.session.names) > 1 else "there is only one config yet")

    @action(label="diff", help="What differs between A and B, or from the config before", group="Configs",
            disabled=only_one)
    def diff(self) -> None:
        """Shows what differs."""
        marks = self.desk.marks.configs
        one = marks.get("A")
        other = marks.get("B", self.session.config)
        if one is None or one == other:
            named = list(self.session.names)
            index = named.index(other) if other in named else len(named)
            one = named[index - 1] if index else named[1]
        unknown = [config for config in (one, other) if self.session.results.of(config).preview is None]
        if unknown and not self.session.asked.any(requests.PreviewEngine):  # a newer one would take its place
            self.session.preview_engine(unknown[-1], effects=False)
        names = " and ".join(known.config_name(self.session, config) for config in (one, other))
        self.desk.app.push_screen(Page(f"What differs: {names}",
                                       diff_lines(self.session, self.listing.model, one, other)))
