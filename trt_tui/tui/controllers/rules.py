"""The rules that keep layers in a float precision."""

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_move import KeepMove
from trt_tui.core.moves.keep_rules import apply_keep_rules, keep_rules_text
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.screens.rules import RulesDialog


class RuleController(Controller):
    """See the module's docstring."""

    @register_action(label="rules", help="Keep norms, softmax, the head, names by pattern in FP32 or FP16 by rule",
                     group="Change", disabled_reason=Controller.network_not_open_reason)
    def rules(self) -> None:
        """Asks which rules hold, and applies them as one change."""
        session = self.session
        outline = session.opened_network.outline

        def apply_rules(rule_texts: list[str]) -> PrecisionConfig:
            return apply_keep_rules(outline, session.config.without_moves(KeepMove), rule_texts)

        def set_chosen_config(config: PrecisionConfig) -> None:
            if config != session.config:
                session.set_config(config, [
                    group for group in outline.groups
                    if group.name in config.groups_kept_by_rule.symmetric_difference(session.config.groups_kept_by_rule)
                ])
                self.presenter.handle_config_change()
                self.presenter.show_message(keep_rules_text(config) or "no rule keeps a layer", "")

        self.open_dialog(RulesDialog(outline, session.config, apply_rules), set_chosen_config)
