"""The page of pictures."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.tui import known
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.keys import key
from trt_tui.tui.screens.pictures import PicturesPage


class Pictures(Controller):
    """See the module's docstring."""

    _shown = 0

    def nothing_to_draw(self) -> str:
        """Why there is no picture."""
        return self.not_open() or ("" if self.listing.is_measured else "nothing was measured yet")

    @action(label="pictures", help="Pictures: values and channels, share over depth, errors over samples, "
            "accuracy against latency, engine layers, classes, stages, warnings", group="Look",
            disabled=nothing_to_draw)
    def pictures(self) -> None:
        """Shows the one that was shown last."""
        page = PicturesPage(self.session, lambda: self.listing.figures, self.desk.current_group, self._shown)

        def closed(taken: PrecisionConfig | str | None) -> None:
            self._shown = page.shown
            if isinstance(taken, str):
                self.desk.go_to(taken)
            elif taken is not None and taken != self.session.config:
                self.session.set_config(taken)
                self.desk.changed()
                self.desk.say(f"{known.config_name(self.session)}, {key('undo')} takes it back", "")

        self.desk.app.push_screen(page, closed)
