"""The action on zero-cost changes: the kinds of the table `ZERO_COST_KINDS`."""

from trt_tui.core.measure.zero_cost_kinds import find_refusal_reasons, list_zero_cost_moves
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs.events import ZERO_COST_KEY
from trt_tui.tui.config_status import target_value_span
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem


class ZeroCostController(Controller):
    """The controller of the moves that add no run time, for the selected fusion group."""

    def zero_cost_disabled_reason(self) -> str:
        """Returns the reason why the selected row has no possible zero-cost move; "" if it has such a move."""
        if reason := self.missing_samples_reason() or self.no_chosen_groups_reason():
            return reason
        group = self.presenter.current_group
        if group is None:
            return "choose a single group: its operator decides which zero-cost changes are possible"
        outline, config = self.session.opened_network.outline, self.session.config
        if list_zero_cost_moves(outline, config, group):
            return ""
        reasons = find_refusal_reasons(outline, config, group)
        return "; ".join(f"{title}: {refusal}" for title, refusal in reasons.items()) if all(reasons.values()) else ""

    @register_action(label="free", help="Zero-cost changes: LayerNorm as operator, SmoothQuant, bias correction",
                     group="Change", disabled_reason=zero_cost_disabled_reason, footer=51)
    def free(self) -> None:
        """Shows the possible zero-cost moves of the selected group with their measured effect, and applies the chosen
        one."""
        group = self.presenter.current_group
        if group is None:
            return
        session, config = self.session, self.session.config
        outline = session.opened_network.outline
        items: list[PickerItem] = []
        for kind, subject in list_zero_cost_moves(outline, config, group):
            move = config.moves[kind.kind, subject]
            subject_text = f" of {subject}" if subject != group.name else ""
            items.append(
                PickerItem(str(len(items) + 1), f"undo: {move.label}{subject_text}",
                           config.without_moves(kind, [subject])))
        remedies = session.results.remedies.get((group.name, config))
        for remedy in remedies or ():
            if remedy.key == ZERO_COST_KEY:
                value_text = target_value_span(session, remedy.accuracy)[0]
                items.append(PickerItem(str(len(items) + 1), f"{remedy.label:<24} {value_text}", remedy.config))
        if remedies is None:
            session.request_group_details(group)
            items.append(PickerItem("", "their effect is being measured", "",
                                    f"close this, and press {shown_key('free')} again in a moment"))
        items += [PickerItem("", title, "", reason)
                  for title, reason in find_refusal_reasons(outline, config, group).items() if reason]

        def apply_chosen_config(chosen_config: PrecisionConfig) -> None:
            session.set_config(chosen_config, [group])
            self.presenter.handle_config_change()

        self.open_dialog(Picker(f"Zero-cost changes: {group.name}", items), apply_chosen_config)
