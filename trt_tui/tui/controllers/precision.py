"""The actions that change precisions: of the selected rows, of layers with unused Q/DQ, and by keep rules."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.engines.preview import find_groups_sharing_kernel
from trt_tui.core.lowering.lowering_checks import precision_requirements_text
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_rules import apply_keep_rules, keep_rules_text
from trt_tui.core.moves.layer_moves import BarrierMove, KeepMove
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import ASSIGNABLE, Precision
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.editable_session import find_stepped_precision
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.screens.rules import RulesDialog
from trt_tui.tui.state.preview_texts import preview_refusal_text


def precision_choice_text(precision: Precision) -> str:
    """Returns the text of a precision in a list of choices, with its requirements in parentheses."""
    if precision is Precision.FILE:
        return "file precision"
    notes = ["FP32 accumulator"] if precision is Precision.FP16_ACC_FP32 else []
    notes += [requirement] if (requirement := precision_requirements_text(precision)) else []
    return f"{precision.label}  ({': '.join(notes)})" if notes else precision.label


_HIGHEST_PRECISION_TEXT = "this is the highest precision"


class PrecisionController(Controller):
    """The controller of precision changes and fusion barriers for the selected fusion groups."""

    def precision_change_disabled_reason(self) -> str:
        """Returns the reason why the precision of the selected row cannot change; "" if it can change."""
        if reason := self.no_chosen_groups_reason():
            return reason
        config, groups = self.session.config, self.presenter.list_chosen_groups()
        if any(group.name not in config.groups_kept_by_rule for group in groups):
            return ""
        move = config.get_moves(KeepMove)[groups[0].name]
        return f"{move.row_note}: {shown_key('rules')} changes the rules"

    def toggle_disabled_reason(self) -> str:
        """Returns the reason why the selected row cannot be toggled; "" if it can be, or if it has several groups."""
        if reason := self.precision_change_disabled_reason():
            return reason
        group = self.presenter.current_group
        if group is None or len(group.allowed_precisions) > 1:
            return ""
        return f"it runs in FP32 only{next((f': {reason}' for reason in group.refusal_reasons.values()), '')}"

    def raise_disabled_reason(self) -> str:
        """Returns the reason why the selected row cannot be raised; "" if it can be, or if it has several groups."""
        return self.toggle_disabled_reason() or self._end_of_steps_text(True)

    def reduce_disabled_reason(self) -> str:
        """Returns the reason why the selected row cannot be reduced; "" if it can be, or if it has several groups."""
        return self.toggle_disabled_reason() or self._end_of_steps_text(False)

    def _end_of_steps_text(self, upwards: bool) -> str:
        """Returns that the selected group has no next precision; "" if it has one, or if the row is not one group."""
        group, config = self.presenter.current_group, self.session.config
        if group is None:
            return ""
        if find_stepped_precision(config, group, upwards) is not config.precision_of(group):
            return ""
        return _HIGHEST_PRECISION_TEXT if upwards else self._lowest_precision_text()

    @register_action(label="FP32", help="Toggle FP32 for a group, a scope or a role of the blocks",
                     group="Change", disabled_reason=toggle_disabled_reason, footer=10)
    def toggle(self) -> None:
        """Changes the selected fusion groups between FP32 and their default precision."""
        self.session.toggle_fp32(self.presenter.list_chosen_groups())
        self.presenter.handle_config_change()

    def kernel_toggle_disabled_reason(self) -> str:
        """Returns the reason why the rows that share a kernel cannot be toggled together; "" if they can be toggled."""
        if reason := self.no_chosen_groups_reason():
            return reason
        if self.layer_list.row_values.preview is None and not self.layer_list.row_values.implementations:
            return "the rows that share a kernel are not known yet"
        has_mates = len(self._list_groups_sharing_kernel()) > len(self.presenter.list_chosen_groups())
        return "" if has_mates else "it shares its kernel with no other row"

    @register_action(label="with kernel", help="Toggle FP32 for all rows in the kernel of this row",
                     group="Change", disabled_reason=kernel_toggle_disabled_reason)
    def toggle_kernel(self) -> None:
        """Changes all groups that share a kernel with the selected groups between FP32 and their default precision."""
        groups = self._list_groups_sharing_kernel()
        self.session.toggle_fp32(groups)
        self.presenter.handle_config_change()
        self.presenter.show_message(f"{counted_noun_text(len(groups), 'row')} of one kernel", "")

    @register_action(label="up", help="Raise by one of the precisions in use", group="Change",
                     disabled_reason=raise_disabled_reason, footer=11)
    def higher(self) -> None:
        """Raises the selected groups by one step through the precisions in use."""
        self._step_chosen_precisions(True)

    @register_action(label="down", help="Reduce by one of the precisions in use", group="Change",
                     disabled_reason=reduce_disabled_reason, footer=12)
    def lower(self) -> None:
        """Reduces the precision of the selected groups by one step through the precisions in use."""
        self._step_chosen_precisions(False)

    @register_action(label="precision", help="Choose a precision from a list", group="Change",
                     disabled_reason=precision_change_disabled_reason, footer=50)
    def precision(self) -> None:
        """Shows the list of precisions, and applies the chosen one to the selected groups."""
        groups = self.presenter.list_chosen_groups()
        current_precisions = {self.session.config.precision_of(group) for group in groups}
        items = []
        file_precision = (Precision.FILE,) if self.session.opened_network.outline.has_file_precision else ()
        for precision in (*ASSIGNABLE, *file_precision):
            capable_groups = [group for group in groups if precision in group.allowed_precisions]
            refusal = "" if capable_groups else groups[0].refusal_reasons.get(precision, "not possible here")
            capable_text = f"  {len(capable_groups)} of {len(groups)} can" if capable_groups and len(
                capable_groups) < len(groups) else ""
            items.append(
                PickerItem(precision.letter,
                           precision_choice_text(precision) + capable_text, precision, refusal))
        title = groups[0].name if len(groups) == 1 else counted_noun_text(len(groups), "fused layer")

        def set_chosen_precision(precision: Precision) -> None:
            self.session.set_precision(groups, precision)
            self.presenter.handle_config_change()

        current_precision = current_precisions.pop() if len(current_precisions) == 1 else None
        self.open_dialog(Picker(f"Precision of {title}", items, current_precision), set_chosen_precision)

    def barrier_disabled_reason(self) -> str:
        """Returns the reason why a fusion barrier behind the selected row is impossible; "" if it is possible."""
        if reason := self.no_chosen_groups_reason():
            return reason
        group = self.presenter.current_group
        if group is None:
            return "choose a single group: a fusion barrier belongs to one output"
        return BarrierMove().refusal_reason(self.layer_list.tree_model.outline, group.final_tensor)

    @register_action(label="barrier", help="Toggle a fusion barrier: the row's output becomes a network output, and "
                                           "TensorRT does not fuse across it",
                     group="Change", disabled_reason=barrier_disabled_reason)
    def barrier(self) -> None:
        """Adds or removes a fusion barrier behind the selected fusion group."""
        group = self.presenter.current_group
        if group is None:
            return
        self.session.toggle_barrier(group)
        self.presenter.handle_config_change()
        is_barrier = group.final_tensor in self.session.config.get_moves(BarrierMove)
        self.presenter.show_message(
            f"{group.final_tensor} becomes a network output: TensorRT does not fuse across it"
            if is_barrier else "the fusion barrier is removed", "")

    def _list_groups_sharing_kernel(self) -> tuple[FusionGroup, ...]:
        """Returns the selected groups and all groups that share a kernel with one of them."""
        row_values, outline = self.layer_list.row_values, self.layer_list.tree_model.outline
        implementations = (row_values.preview.implementations
                           if row_values.preview is not None else row_values.implementations)
        names = {
            mate.name
            for group in self.presenter.list_chosen_groups()
            for mate in find_groups_sharing_kernel(group, implementations, outline)
        }
        return tuple(group for group in outline.groups if group.name in names)

    def _step_chosen_precisions(self, upwards: bool) -> None:
        old_config = self.session.config
        self.session.step_precisions(self.presenter.list_chosen_groups(), upwards)
        self.presenter.handle_config_change()
        if self.session.config == old_config:
            self.presenter.show_message(_HIGHEST_PRECISION_TEXT if upwards else self._lowest_precision_text())

    def _lowest_precision_text(self) -> str:
        group = self.presenter.current_group
        lowest = self.session.config.precision_steps[0]
        if group is not None and lowest in group.refusal_reasons:
            return f"no lower: {group.refusal_reasons[lowest]}"
        return "this is the lowest precision"


class QdqController(Controller):
    """The controller of the action that takes unused Q/DQ out of the config."""

    def event_handlers(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Returns the handler that shows what was taken out."""
        return {ev.UnusedQdqRemoved: self._show_removal}

    def _show_removal(self, event: ev.UnusedQdqRemoved) -> None:
        removal = event.removal
        if not removal.groups:
            kept = [unused.group_name for unused in removal.kept_groups if not unused.fixed_reason]
            self.presenter.show_message("no Q/DQ can be taken out"
                                        + (f": the engine is worse without those of {kept[0]}" if kept else ""))
        elif self.session.config == removal.config:
            self.presenter.handle_config_change()
            self.presenter.show_message(f"{removal.summary}; {shown_key('undo')} undoes it", "")
        else:
            self.presenter.show_message("the config has changed, so its Q/DQ stay: "
                                        f"{shown_key('remove_qdq')} tries it again")

    def qdq_removal_disabled_reason(self) -> str:
        """Returns the reason why no Q/DQ can be taken out of the config; "" if some can."""
        session = self.session
        if reason := self.missing_samples_reason():
            return reason
        if session.pending_requests.has_request(rq.RemoveUnusedQdq):
            return "unused Q/DQ are being taken out"
        preview = session.get_run_results("config").preview
        if preview is None or preview.refusal is not None:
            return preview_refusal_text(session) or ("the preview is being built" if session.can_preview_engines else
                                                     "there is no preview: --no-preview turns it off")
        unused = session.find_unused_quantization(preview)
        if any(not item.fixed_reason for item in unused):
            return ""
        if unused:
            return f"{unused[0].group_name}: {unused[0].description}"
        return f"no quantized layer runs in a float type (preview {preview.builder_text})"

    @register_action(label="Q/DQ out", help="Take out the Q/DQ of layers that run in a float type anyway, as the "
                                            "preview shows", group="Change",
                     disabled_reason=qdq_removal_disabled_reason)
    def remove_qdq(self) -> None:
        """Requests the config without unused Q/DQ, which becomes the current config as one change."""
        self.session.request_qdq_removal()
        self.presenter.draw_all()


class RuleController(Controller):
    """The controller of the keep rules, which fix the precision of the layers that they name."""

    @register_action(label="rules", help="Keep norms, softmax, the head, names by pattern in FP32 or FP16 by rule",
                     group="Change", disabled_reason=Controller.network_not_open_reason)
    def rules(self) -> None:
        """Shows the dialog of keep rules, and applies the chosen rules as one config change."""
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
