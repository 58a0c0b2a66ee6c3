"""The actions on the row filter, and on all rows that match it."""

from collections import Counter
from collections.abc import Sequence

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import REQUESTABLE, Precision
from trt_tui.formatting import counted_noun_text
from trt_tui.tui.controllers.controller import Controller, register_action
from trt_tui.tui.controllers.precision import precision_choice_text
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.spans import Span
from trt_tui.tui.state.tree import View

_DEFAULT_ANSWER = "default"
"""The list entry that gives groups their default precision."""


class FilterController(Controller):
    """The controller of the filter field, and of precision changes for all matching rows."""

    _shown_error: Span | None = None
    """The message about an error in the typed filter; None if the filter has no error."""

    @register_action(label="find", help="Show only rows that match: text, !text, /regex/, share>1%, prec:int8, op:conv",
                     group="Move", disabled_reason=Controller.network_not_open_reason, footer=30)
    def filter(self) -> None:
        """Shows the filter field and focuses it."""
        self.presenter.screen.add_class("-filtering")
        if self.layer_list.view is View.BLOCKS:
            self.presenter.set_view(View.TREE)
        self.presenter.filter_input.focus()

    def apply_typed_filter(self, text: str) -> None:
        """Filters the rows by a typed text, and shows an error as long as the text is not a valid filter."""
        if not self.layer_list.is_network_open:
            return
        self.presenter.freeze_row_order()
        error_text = self.presenter.filter_rows(text)
        self.presenter.draw_layer_tree()
        self.presenter.handle_cursor_move()
        if self._shown_error is not None:
            self.presenter.clear_message(self._shown_error)
        self._shown_error = self.presenter.show_message(error_text) if error_text else None

    def keep_typed_filter(self) -> None:
        """Makes the typed filter a change of the session, which undo takes back."""
        if self.layer_list.is_network_open:
            has_filter = self.layer_list.row_filter is not None
            self.session.set_filter(self.presenter.filter_input.value.strip() if has_filter else "")

    def change_matches_disabled_reason(self) -> str:
        """Returns the reason why the rows that match the filter cannot change; "" if they can change."""
        if reason := self.network_not_open_reason():
            return reason
        if self.layer_list.matches is None:
            return f"filter the rows first, with {shown_key('filter')}"
        return "" if self.layer_list.matches else "the filter matches nothing"

    @register_action(label="all matches", help="Choose a precision for all rows that match the filter, as one change",
                     group="Change", disabled_reason=change_matches_disabled_reason)
    def all_found(self) -> None:
        """Asks for a precision for all rows that match the filter, and applies it as one config change."""
        session = self.session
        matches = self.layer_list.matches or set()
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
            self.presenter.handle_config_change()
            self.presenter.show_message(precision_change_text(groups, precision, old_config), "")

        self.open_dialog(Picker(f"Precision of {counted_noun_text(len(groups), 'fused layer')} that match", items),
                         set_precision_of_matches)

    def close_filter_field(self) -> None:
        """Focuses the tree after enter, and hides the filter field if it contains no filter."""
        if self.layer_list.matches is None:
            self.presenter.screen.remove_class("-filtering")
        self.presenter.layer_tree.focus()


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
