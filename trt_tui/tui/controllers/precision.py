"""The actions that change precisions: of the selected rows, of layers with unused Q/DQ, and by keep rules."""

from collections import Counter
from collections.abc import Sequence, Set

from trt_tui.core.lowering.lowering_checks import precision_requirements_text
from trt_tui.core.moves.config import BarrierMove, KeepMove, PrecisionConfig
from trt_tui.core.moves.keep_rules import apply_keep_rules, keep_rules_text
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import ASSIGNABLE, REQUESTABLE, Precision
from trt_tui.formatting import counted_noun_text
from trt_tui.session.editable_session import find_stepped_precision
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.screens.fields import RulesDialog


def precision_choice_text(precision: Precision) -> str:
    """Returns the text of a precision in a list of choices, with its requirements in parentheses."""
    if precision is Precision.FILE:
        return "file precision"
    notes = ["FP32 accumulator"] if precision is Precision.FP16_ACC_FP32 else []
    notes += [requirement] if (requirement := precision_requirements_text(precision)) else []
    return f"{precision.label}  ({': '.join(notes)})" if notes else precision.label


def precision_change_text(groups: Sequence[FusionGroup], precision: Precision | None,
                          old_config: PrecisionConfig) -> str:
    """Returns a message about a precision change for many groups: how many changed, and how many did not and why.

    Args:
        precision: The requested precision; None for the default precision of each group.
        old_config: The config before the change.
    """
    refusal_counts: Counter[str] = Counter()
    for group in groups:
        if group.name in old_config.groups_kept_by_rule:
            refusal_counts["kept by rule"] += 1
        elif precision is not None and precision not in group.allowed_precisions:
            refusal_counts[group.refusal_reasons.get(precision, "not possible")] += 1
    changed_count = len(groups) - refusal_counts.total()
    summary = (
        f"{counted_noun_text(changed_count, 'group')} "
        f"{'in the default precision' if precision is None else 'in ' + precision.label}"
    )
    refusals_text = "; ".join(f"{count}: {reason}" for reason, count in refusal_counts.most_common(3))
    return f"{summary}; {refusal_counts.total()} unchanged ({refusals_text})" if refusal_counts else summary


_HIGHEST_PRECISION_TEXT = "this is the highest precision"
_DEFAULT_ANSWER, _MATCHES_ANSWER = "default", "matches"
"""The list entries that give groups their default precision, and that lead to the list for all matching rows."""


class PrecisionController(Presenter):
    """The part of the main screen for precisions and fusion barriers of the selected groups, and for keep rules."""

    def refuse_precision(self) -> str:
        """Returns the reason why the precision of the selected row cannot change; "" if it can change."""
        config, groups = self.session.config, self.list_chosen_groups()
        if any(group.name not in config.groups_kept_by_rule for group in groups):
            return ""
        move = config.get_moves(KeepMove)[groups[0].name]
        return f"{move.row_note}: {shown_key('rules')} changes the rules"

    def refuse_toggle(self) -> str:
        """Returns the reason why the selected row cannot be toggled; "" if it can be, or if it has several groups."""
        if reason := self.refuse_precision():
            return reason
        group = self.current_group
        if group is None or len(group.allowed_precisions) > 1:
            return ""
        return f"it runs in FP32 only{next((f': {reason}' for reason in group.refusal_reasons.values()), '')}"

    def refuse_higher(self) -> str:
        """Returns the reason why the selected row cannot be raised; "" if it can be, or if it has several groups."""
        return self.refuse_toggle() or self._end_of_steps_text(True)

    def refuse_lower(self) -> str:
        """Returns the reason why the selected row cannot be reduced; "" if it can be, or if it has several groups."""
        return self.refuse_toggle() or self._end_of_steps_text(False)

    def _end_of_steps_text(self, upwards: bool) -> str:
        """Returns that the selected group has no next precision; "" if it has one, or if the row is not one group."""
        group, config = self.current_group, self.session.config
        if group is None:
            return ""
        if find_stepped_precision(config, group, upwards) is not config.precision_of(group):
            return ""
        return _HIGHEST_PRECISION_TEXT if upwards else self._lowest_precision_text()

    def do_toggle(self) -> None:
        """Changes the selected fusion groups between FP32 and their default precision."""
        self.session.toggle_fp32(self.list_chosen_groups())
        self.handle_config_change()

    def do_higher(self) -> None:
        """Raises the selected groups by one step through the precisions in use."""
        self._step_chosen_precisions(True)

    def do_lower(self) -> None:
        """Reduces the precision of the selected groups by one step through the precisions in use."""
        self._step_chosen_precisions(False)

    def do_precision(self) -> None:
        """Shows the list of precisions, and applies the chosen one to the selected groups. The last entry leads to the
        list for all rows that match the filter."""
        groups = self.list_chosen_groups()
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
        matches = self.layer_list.matches or set()
        if matches:
            items.append(PickerItem("0", f"all {counted_noun_text(len(matches), 'fused layer')} that match the filter…",
                                    _MATCHES_ANSWER))
        title = groups[0].name if len(groups) == 1 else counted_noun_text(len(groups), "fused layer")

        def set_chosen_precision(precision: Precision | str) -> None:
            if not isinstance(precision, Precision):
                self._choose_precision_of_matches(matches)
                return
            self.session.set_precision(groups, precision)
            self.handle_config_change()

        current_precision = current_precisions.pop() if len(current_precisions) == 1 else None
        self.open_dialog(Picker(f"Precision of {title}", items, current_precision), set_chosen_precision)

    def _choose_precision_of_matches(self, matches: Set[str]) -> None:
        """Asks for a precision for all rows that match the filter, and applies it as one config change."""
        session = self.session
        groups = [group for group in session.opened_network.outline.groups if group.name in matches]
        free_groups = [group for group in groups if group.name not in session.config.groups_kept_by_rule]
        kept_reason = "" if free_groups else f"all are kept by rule: {shown_key('rules')} changes the rules"
        items = [PickerItem("0", "the default", _DEFAULT_ANSWER, kept_reason)]
        for precision in REQUESTABLE:
            capable_groups = [group for group in free_groups if precision in group.allowed_precisions]
            if capable_groups or precision is not Precision.FILE:
                capable_text = f"  {len(capable_groups)} of {len(groups)} can" if len(capable_groups) < len(
                    groups) else ""
                items.append(
                    PickerItem(precision.letter,
                               precision_choice_text(precision) + capable_text, precision,
                               "" if capable_groups else "none can"))

        def set_precision_of_matches(chosen_precision: Precision | str) -> None:
            old_config = session.config
            precision = chosen_precision if isinstance(chosen_precision, Precision) else None
            if precision is None:
                session.set_config(old_config.without_group_precision(free_groups), free_groups)
            else:
                session.set_precision(free_groups, precision)
            self.handle_config_change()
            self.show_message(precision_change_text(groups, precision, old_config), "")

        self.open_dialog(Picker(f"Precision of {counted_noun_text(len(groups), 'fused layer')} that match", items),
                         set_precision_of_matches)

    def refuse_barrier(self) -> str:
        """Returns the reason why a fusion barrier behind the selected row is impossible; "" if it is possible."""
        group = self.current_group
        if group is None:
            return "choose a single group: a fusion barrier belongs to one output"
        return BarrierMove().refusal_reason(self.layer_list.tree_model.outline, group.final_tensor)

    def do_barrier(self) -> None:
        """Adds or removes a fusion barrier behind the selected fusion group."""
        group = self.current_group
        if group is None:
            return
        self.session.toggle_barrier(group)
        self.handle_config_change()
        is_barrier = group.final_tensor in self.session.config.get_moves(BarrierMove)
        self.show_message(
            f"{group.final_tensor} becomes a network output: TensorRT does not fuse across it"
            if is_barrier else "the fusion barrier is removed", "")

    def _step_chosen_precisions(self, upwards: bool) -> None:
        old_config = self.session.config
        self.session.step_precisions(self.list_chosen_groups(), upwards)
        self.handle_config_change()
        if self.session.config == old_config:
            self.show_message(_HIGHEST_PRECISION_TEXT if upwards else self._lowest_precision_text())

    def _lowest_precision_text(self) -> str:
        group = self.current_group
        lowest = self.session.config.precision_steps[0]
        if group is not None and lowest in group.refusal_reasons:
            return f"no lower: {group.refusal_reasons[lowest]}"
        return "this is the lowest precision"

    def do_rules(self) -> None:
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
                self.handle_config_change()
                self.show_message(keep_rules_text(config) or "no rule keeps a layer", "")

        self.open_dialog(RulesDialog(outline, session.config, apply_rules), set_chosen_config)
