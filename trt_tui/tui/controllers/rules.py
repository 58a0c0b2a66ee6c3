"""The rules that keep layers in a float precision."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.keeping import kept_words, with_kept
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.rules import RulesDialog


class Rules(Controller):
    """See the module's docstring."""

    @action(label="rules", help="Keep norms, softmax, the head, names by pattern in FP32 or FP16 by rule",
            group="Change", disabled=Controller.not_open)
    def rules(self) -> None:
        """Asks which rules hold, and applies them as one change."""
        session = self.session
        outline = session.opened.outline

        def kept(texts: list[str]) -> PrecisionConfig:
            return with_kept(outline, session.config.without(Keep), texts)

        def chosen(config: PrecisionConfig | None) -> None:
            if config is not None and config != session.config:
                session.set_config(config, [group for group in outline.groups
                                            if group.name in config.held.symmetric_difference(session.config.held)])
                self.desk.changed()
                self.desk.say(kept_words(config) or "no rule keeps a layer", "")

        self.desk.app.push_screen(RulesDialog(outline, session.config, kept), chosen)
