"""The actions that change the config: precisions, keep rules and barriers, ranges, and zero-cost changes."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partialmethod

from trt_tui.core.calibration.calibration import RANGE_METHODS
from trt_tui.core.calibration.user_ranges import parse_amax
from trt_tui.core.lowering.network_rewrite import precision_requirements_text
from trt_tui.core.measure.zero_cost_kinds import (
    LEAVES_FILE_SUFFIX,
    find_network_refusal_reasons,
    find_refusal_reasons,
    list_zero_cost_moves,
)
from trt_tui.core.moves.config import BarrierMove, KeepRuleMove, PrecisionConfig, find_network_range_method
from trt_tui.core.moves.keep_rules import apply_keep_rules, keep_rules_text
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import ASSIGNABLE, REQUESTABLE, Precision
from trt_tui.core.quantized_types import TYPES_WITH_RANGES_TEXT
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.comparison_report import find_best_range_method, method_comparison_table
from trt_tui.session.session import find_stepped_precision
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem, Prompt, input_error_text
from trt_tui.tui.screens.forms import RulesDialog
from trt_tui.tui.state.config_status import accuracy_sort_key, has_unfinished_accuracy, target_value_span
from trt_tui.tui.state.engine_texts import preview_refusal_text
from trt_tui.tui.table import Column


def precision_choice_text(precision: Precision) -> str:
    """Returns the text of a precision in a list of choices, with its requirements in parentheses."""
    if precision is Precision.FILE:
        return "file precision"
    notes = ["FP32 accumulator"] if precision is Precision.FP16_ACC_FP32 else []
    notes += [requirement] if (requirement := precision_requirements_text(precision)) else []
    return f"{precision.label}  ({': '.join(notes)})" if notes else precision.label


def precision_change_text(
    groups: Sequence[FusionGroup], precision: Precision | None, old_config: PrecisionConfig
) -> str:
    """Returns a message about a precision change for many groups: how many changed, and how many did not and why.

    Args:
        precision: The requested precision; None for the default precision of each group.
        old_config: The config before the change.
    """
    refusal_counts: Counter[str] = Counter()
    for group in groups:
        if group.name in old_config.groups_fixed_by_rule:
            refusal_counts["fixed by rule"] += 1
        elif precision is not None and precision not in group.allowed_precisions:
            refusal_counts[group.refusal_reasons.get(precision, "not possible")] += 1
    changed_count = len(groups) - refusal_counts.total()
    summary = (
        f"{counted_noun_text(changed_count, 'fused layer')} "
        f"{'in the default precision' if precision is None else 'in ' + precision.label}"
    )
    refusals_text = "; ".join(f"{count}: {reason}" for reason, count in refusal_counts.most_common(3))
    return f"{summary}; {refusal_counts.total()} unchanged ({refusals_text})" if refusal_counts else summary


_DEFAULT_ANSWER, _MATCHES_ANSWER = "default", "matches"
"""The list entries that give groups their default precision, and that lead to the list for all matching rows."""


class PrecisionController(Presenter):
    """The part of the main screen for precisions and fusion barriers of the selected groups, and for keep rules."""

    def refuse_precision(self) -> str:
        """Returns the reason why the precision of the selected row cannot change; "" if it can change."""
        config, groups = self.session.config, self.list_chosen_groups()
        if any(group.name not in config.groups_fixed_by_rule for group in groups):
            return ""
        move = config.get_moves(KeepRuleMove)[groups[0].name]
        return f"{move.row_note}: {shown_key('rules')} changes the rules"

    def refuse_toggle(self) -> str:
        """Returns the reason why the selected row cannot be toggled; "" if it can be, or if it has several groups."""
        if reason := self.refuse_precision():
            return reason
        group = self.current_group
        if group is None or len(group.allowed_precisions) > 1:
            return ""
        return f"it runs in FP32 only{next((f': {reason}' for reason in group.refusal_reasons.values()), '')}"

    def _precision_step_refusal_reason(self, upwards: bool) -> str:
        """Returns the reason why the selected row cannot be raised or reduced; "" if it can be, or if it has several
        groups."""
        group, config = self.current_group, self.session.config
        if (reason := self.refuse_toggle()) or group is None:
            return reason
        is_last = find_stepped_precision(config, group, upwards) is config.precision_of(group)
        return self._no_further_step_text(upwards) if is_last else ""

    refuse_higher = partialmethod(_precision_step_refusal_reason, True)
    refuse_lower = partialmethod(_precision_step_refusal_reason, False)

    def do_toggle(self) -> None:
        """Changes the selected fusion groups between FP32 and their default precision."""
        self.session.toggle_fp32(self.list_chosen_groups())
        self.handle_config_change()

    def _step_chosen_precisions(self, upwards: bool) -> None:
        """Moves the precision of the selected groups one step up or down in the list of precisions in use."""
        old_config = self.session.config
        self.session.step_precisions(self.list_chosen_groups(), upwards)
        self.handle_config_change()
        if self.session.config == old_config:
            self.show_message(self._no_further_step_text(upwards))

    do_higher = partialmethod(_step_chosen_precisions, True)
    do_lower = partialmethod(_step_chosen_precisions, False)

    def _no_further_step_text(self, upwards: bool) -> str:
        group, lowest = self.current_group, self.session.config.precision_steps[0]
        if not upwards and group is not None and lowest in group.refusal_reasons:
            return f"no lower: {group.refusal_reasons[lowest]}"
        return f"this is the {'highest' if upwards else 'lowest'} precision"

    def do_precision(self) -> None:
        """Shows the list of precisions, and applies the chosen one to the selected groups. A last entry leads to a
        second list, whose choice applies to all rows that match the filter."""
        groups, matches = self.list_chosen_groups(), self.layer_list.matches or set()
        precisions = {self.session.config.precision_of(group) for group in groups}
        items = self._list_precision_entries(groups, len(groups))
        if matches:
            items.append(
                PickerItem(
                    "0", f"all {counted_noun_text(len(matches), 'fused layer')} that match the filter…", _MATCHES_ANSWER
                )
            )
        title = groups[0].name if len(groups) == 1 else counted_noun_text(len(groups), "fused layer")

        def set_chosen_precision(precision: Precision | str) -> None:
            if not isinstance(precision, Precision):
                self._ask_for_precision_of_filtered_rows(matches)
                return
            self.session.set_precision(groups, precision)
            self.handle_config_change()

        self.open_dialog(
            Picker(f"Precision of {title}", items, precisions.pop() if len(precisions) == 1 else None),
            set_chosen_precision,
        )

    def _list_precision_entries(self, groups: Sequence[FusionGroup], count: int) -> list[PickerItem]:
        """Returns the list entry of each precision. An entry shows the number of groups that can run in the
        precision."""
        outline, items = self.session.opened_network.outline, list[PickerItem]()
        for precision in REQUESTABLE if outline.has_file_precision else ASSIGNABLE:
            capable_count = sum(precision in group.allowed_precisions for group in groups)
            refusal = "none can" if len(groups) != 1 else groups[0].refusal_reasons.get(precision, "not possible here")
            capable_text = f"  {capable_count} of {count} can" if 0 < capable_count < count else ""
            items.append(
                PickerItem(
                    precision.letter,
                    precision_choice_text(precision) + capable_text,
                    precision,
                    "" if capable_count else refusal,
                )
            )
        return items

    def _ask_for_precision_of_filtered_rows(self, matches: Set[str]) -> None:
        """Asks for a precision for all rows that match the filter. The choice is one change of the config."""
        session = self.session
        groups = [group for group in session.opened_network.outline.groups if group.name in matches]
        free_groups = [group for group in groups if group.name not in session.config.groups_fixed_by_rule]
        kept_reason = "" if free_groups else f"all are fixed by rule: {shown_key('rules')} changes the rules"
        items = [
            PickerItem("0", "the default", _DEFAULT_ANSWER, kept_reason),
            *self._list_precision_entries(free_groups, len(groups)),
        ]

        def set_precision_of_filtered_rows(chosen_precision: Precision | str) -> None:
            old_config = session.config
            precision = chosen_precision if isinstance(chosen_precision, Precision) else None
            if precision is None:
                session.set_config(old_config.without_group_precision(free_groups))
            else:
                session.set_precision(free_groups, precision)
            self.handle_config_change()
            self.show_message(precision_change_text(groups, precision, old_config), "")

        self.open_dialog(
            Picker(f"Precision of {counted_noun_text(len(groups), 'fused layer')} that match", items),
            set_precision_of_filtered_rows,
        )

    def refuse_barrier(self) -> str:
        """Returns the reason why a fusion barrier behind the selected row is impossible; "" if it is possible."""
        group = self.current_group
        if group is None:
            return "choose a single fused layer: a fusion barrier belongs to one output"
        return BarrierMove().refusal_reason(self.layer_list.tree_model.outline, group.final_tensor)

    def do_barrier(self) -> None:
        """Adds or removes a fusion barrier behind the selected fusion group."""
        group = self.current_group
        assert group is not None, "the action is refused without one group"
        self.session.toggle_barrier(group)
        self.handle_config_change()
        is_barrier = group.final_tensor in self.session.config.get_moves(BarrierMove)
        self.show_message(
            f"{group.final_tensor} becomes a network output: TensorRT does not fuse across it"
            if is_barrier
            else "the fusion barrier is removed",
            "",
        )

    def do_rules(self) -> None:
        """Shows the dialog of keep rules, and applies the chosen rules as one config change."""
        session = self.session
        outline = session.opened_network.outline

        def apply_rules(rule_texts: list[str]) -> PrecisionConfig:
            return apply_keep_rules(outline, session.config.without_moves(KeepRuleMove), rule_texts)

        def set_chosen_config(config: PrecisionConfig) -> None:
            if config != session.config:
                session.set_config(config)
                self.handle_config_change()
                self.show_message(keep_rules_text(config) or "no rule keeps a layer", "")

        self.open_dialog(RulesDialog(outline, session.config, apply_rules), set_chosen_config)


class RangeController(Presenter):
    """The part of the main screen for the ranges of the selected groups, and the comparison of range methods."""

    _awaited_range: tuple[FusionGroup, PrecisionConfig] | None = None
    """The group whose next range method follows when its ranges are measured, in its config; None if there is none."""

    def forget_awaited_range(self, event: ev.JobCancelled) -> None:
        if not self.session.pending_requests.has_request(rq.MeasureTensorStats):
            self._awaited_range = None

    def apply_awaited_range(self, event: ev.ValueMeasured | ev.CalibrationReady) -> None:
        awaited, self._awaited_range = self._awaited_range, None
        if self.app.screen is self and awaited == (self.current_group, self.session.config):
            self.perform_action("range")

    def show_applied_ranges(self, event: ev.RequestedRangesReady) -> None:
        self.handle_config_change()
        if find_network_range_method(self.session.config, self.session.opened_network.outline):
            return  # the title of the config shows the method
        range_texts = [f"{move.label} ({move.origin_text})" for move in event.ranges.values()]
        self.show_message(
            f"range of "
            f"{counted_noun_text(len(range_texts), 'tensor')}: "
            f"{range_texts[0] if len(set(range_texts)) == 1 else 'set'}",
            "",
        )

    def show_compared_methods(self, event: ev.ValueMeasured) -> None:
        if isinstance(event.value, ev.RangeMethodComparison) and len(event.value.rows) == len(RANGE_METHODS):
            self.show_message(f"calibration methods are compared: {shown_key('methods')} shows them", "")

    def _list_groups_with_ranges(self) -> list[FusionGroup]:
        config = self.session.config
        return [group for group in self.list_chosen_groups() if group.calibrated_qdq_sites(config.precision_of(group))]

    def refuse_type_range(self) -> str:
        """Returns the reason why the ranges of the selected row cannot change; "" if they can change."""
        if self._list_groups_with_ranges():
            has_ranges = self.session.calibration is not None or self.session.data_summary is not None
            return "" if has_ranges else "no ranges were measured"
        group = self.current_group
        if group is None:
            return f"no layer here is in {TYPES_WITH_RANGES_TEXT}: ranges matter there only"
        if not group.is_quantizable:
            return f"ranges matter in {TYPES_WITH_RANGES_TEXT} only: {group.refusal_reasons[Precision.INT8]}"
        precision = self.session.config.precision_of(group)
        if precision is Precision.FILE:
            return (
                f"it runs in file precision, with the scales of the file: {shown_key('precision')} puts it in "
                f"{TYPES_WITH_RANGES_TEXT}"
            )
        return f"it is in {precision.label}: ranges matter in {TYPES_WITH_RANGES_TEXT} only"

    def refuse_range(self) -> str:
        """Returns the reason why the selected row cannot have another range method; "" if it can."""
        if reason := self.refuse_type_range():
            return reason
        group, config = self.current_group, self.session.config
        if group is None or config.fixed_range_tensors.isdisjoint(
            site.tensor for site in group.calibrated_qdq_sites(config.precision_of(group))
        ):
            return ""
        return "its channels are scaled, and the range depends on the factors"

    def do_range(self) -> None:
        """Applies the next range method to the inputs of the selected group; for several groups, asks for a range."""
        group = self.current_group
        if group is None:
            self.do_type_range()
            return
        self._awaited_range = (group, self.session.config)
        method = self.session.apply_next_range_method(group)
        self._awaited_range = None
        self.handle_config_change()
        self.show_message(f"input range: {method}", "")

    def do_type_range(self) -> None:
        session, groups = self.session, self._list_groups_with_ranges()
        tensors = list(
            dict.fromkeys(
                site.tensor
                for group in groups
                for site in group.calibrated_qdq_sites(session.config.precision_of(group))
            )
        )
        config_range = session.config.range_moves.get(tensors[0])
        amax = (
            config_range.amax
            if config_range is not None
            else session.calibration.ranges.get(tensors[0])
            if session.calibration is not None
            else None
        )
        title = (
            f"Range of {tensors[0]}" if len(tensors) == 1 else f"Range of {counted_noun_text(len(tensors), 'tensor')}"
        )

        def set_typed_range(text: str) -> None:
            session.set_ranges(tensors, text.strip())
            self.show_message("its values are being measured" if parse_amax(text.strip()) is None else "", "")

        value = f"{amax:.5g}" if amax is not None and len(tensors) == 1 else ""
        self.open_dialog(
            Prompt(
                title,
                value,
                "an amax like 2.5, minmax, percentile, entropy, mse, p99.9, top5-mean",
                lambda text: input_error_text(parse_amax, text.strip()),
            ),
            set_typed_range,
        )

    def do_methods(self) -> None:
        """Starts the comparison of calibration methods; after its end, shows the table and applies the chosen method."""
        session = self.session
        if session.method_comparison is None or not session.has_method_comparison:
            if not session.pending_requests.has_request(rq.CompareRangeMethods):
                session.compare_range_methods()
            self.show_message(
                f"calibration methods are being compared; {shown_key('methods')} shows them afterwards", ""
            )
            return
        current_method = find_network_range_method(session.config, session.opened_network.outline)
        current_method = current_method or (
            session.calibration.method if session.calibration is not None else session.options.calib_method
        )
        (label, *titles), *table_rows = method_comparison_table(session)
        columns = [
            Column(label, min_width=18),
            *(Column(title, True, rank=int(title in ("worst sample", "s"))) for title in titles),
        ]
        items = [
            PickerItem(str(index + 1), "", row.method, cells=tuple(cells))
            for index, (cells, row) in enumerate(zip(table_rows, session.method_comparison.rows, strict=True))
        ]

        def use_chosen_range_method(method: str) -> None:
            if method != current_method:
                session.use_range_method(method)
                self.handle_config_change()
                self.show_message(f"ranges by {method}: {shown_key('undo')} undoes them", "")

        best, column = find_best_range_method(session)
        title = f"Calibration methods; {best.method} is best by {column}"
        self.open_dialog(Picker(title, items, current_method, columns), use_chosen_range_method)


_QDQ_ANSWER = "unused Q/DQ"
"""The list entry that takes unused Q/DQ out of the config."""


class ZeroCostController(Presenter):
    """The part of the main screen for the changes that add no run time, of the selected group and of the network."""

    _zero_cost_dialog: Picker | None = None
    _zero_cost_subject: tuple[FusionGroup | None, PrecisionConfig]
    _network_refusals: tuple[PrecisionConfig, dict[str, str]] | None = None

    def show_qdq_removal(self, event: ev.UnusedQdqRemoved) -> None:
        """Shows which unused Q/DQ were taken out."""
        removal = event.removal
        if not removal.groups:
            kept = [unused.group_name for unused in removal.kept_groups if not unused.fixed_reason]
            self.show_message(
                "no Q/DQ can be taken out" + (f": the engine is worse without those of {kept[0]}" if kept else "")
            )
        elif self.session.config == removal.config:
            self.handle_config_change()
            self.show_message(f"{removal.savings_text}; {shown_key('undo')} undoes it", "")
        else:
            self.show_message(f"the config has changed, so its Q/DQ stay: {shown_key('free')} tries it again")

    def _qdq_removal_refusal_reason(self) -> str:
        """Returns the reason why no Q/DQ can be taken out of the config; "" if some can."""
        session = self.session
        if session.pending_requests.has_request(rq.RemoveUnusedQdq):
            return "unused Q/DQ are being taken out"
        preview = session.get_run_results("config").preview
        if preview is None or preview.refusal is not None:
            return preview_refusal_text(session) or (
                "the preview is being built"
                if session.can_preview_engines
                else "there is no preview: --no-preview turns it off"
            )
        unused = session.find_unused_quantization(preview)
        if any(not item.fixed_reason for item in unused):
            return ""
        if unused:
            return f"{unused[0].group_name}: {unused[0].finding_text}"
        return f"no quantized layer runs in a float type (preview {preview.builder_text})"

    def refuse_free(self) -> str:
        """Returns the reason why no zero-cost change is possible for the selected row and the network; "" if one is."""
        outline, config, group = self.session.opened_network.outline, self.session.config, self.current_group
        if group is not None and list_zero_cost_moves(outline, config, group):
            return ""
        reasons = {
            **self._find_network_refusal_reasons(config),
            **(find_refusal_reasons(outline, config, group) if group is not None else {}),
        }
        if not all(
            (
                *reasons.values(),
                *self._find_network_refusal_reasons(config).values(),
                self._qdq_removal_refusal_reason(),
            )
        ):
            return ""
        return "; ".join(f"{title}: {refusal}" for title, refusal in reasons.items())

    def _find_network_refusal_reasons(self, config: PrecisionConfig) -> dict[str, str]:
        """Returns the result of `find_network_refusal_reasons`, which is computed once for each config."""
        if self._network_refusals is None or self._network_refusals[0] != config:
            outline = self.session.opened_network.outline
            self._network_refusals = (config, find_network_refusal_reasons(outline, config))
        return self._network_refusals[1]

    def do_free(self) -> None:
        """Shows the zero-cost changes of the selected group and of the network with their values, and applies the
        chosen one."""
        session, group = self.session, self.current_group
        self._zero_cost_subject = (group, session.config)
        session.request_zero_cost_changes(group)
        title = (
            f"Zero-cost changes: {group.name}, and all layers"
            if group is not None
            else ("Zero-cost changes: all layers")
        )
        value_title = session.target.column_title if session.target is not None else "SQNR"
        columns = [
            Column("change", min_width=18),
            Column("layers", rank=1),
            Column(value_title, True),
            Column("run time"),
        ]
        self._zero_cost_dialog = Picker(title, self._list_zero_cost_items(), session.config, columns)

        def apply_chosen_config(chosen_config: PrecisionConfig | str) -> None:
            if isinstance(chosen_config, str):
                session.request_qdq_removal()
                self.draw_all()
                return
            session.set_config(chosen_config)
            self.handle_config_change()

        self.open_dialog(self._zero_cost_dialog, apply_chosen_config)

    def fill_in_zero_cost_values(self, event: ev.ValueMeasured | ev.AccuracyMeasured) -> None:
        dialog = self._zero_cost_dialog
        if dialog is not None and dialog.is_mounted and dialog.is_running:
            items = self._list_zero_cost_items()
            if items != dialog.items:
                dialog.replace_items(items)

    def _list_zero_cost_items(self) -> list[PickerItem]:
        """Returns the entries of the list: the unchanged config, changes to undo, possible changes, and impossible
        changes with the reason.

        Changes are sorted by their values as soon as all values are known. Only then do digits choose them, because the
        entry of a digit would change before. Undos keep their places.
        """
        session, (group, config) = self.session, self._zero_cost_subject
        outline = session.opened_network.outline
        choices: list[tuple[str, tuple[str, ...], PrecisionConfig]] = []
        for kind, subject in list_zero_cost_moves(outline, config, group) if group is not None else ():
            subject_text = f" of {subject}" if group is not None and subject != group.name else ""
            choices.append(
                (
                    f"undo: {config.moves[kind.kind, subject].label}{subject_text}",
                    (),
                    config.without_moves(kind, [subject]),
                )
            )
        undo_count = len(choices)
        known = session.results.find_value(ev.ZERO_COST_CHANGES, (group.name if group is not None else "", config))
        changes = list(known.changes if known is not None else self._list_zero_cost_remedies())
        own_accuracy = session.results.get_results_or_empty(config).accuracy
        totals = {
            accuracy.total
            for accuracy in (own_accuracy, *(change.accuracy for change in changes))
            if accuracy is not None
        }
        if len(totals) > 1:  # values beside each other are those of common samples
            own_accuracy = own_accuracy.accuracy_on_compared_samples if own_accuracy is not None else None
            changes = [
                replace(change, accuracy=change.accuracy.accuracy_on_compared_samples)
                if change.accuracy is not None
                else change
                for change in changes
            ]
        is_complete = known is not None and known.is_complete
        if is_complete:
            changes.sort(key=lambda change: accuracy_sort_key(session, change.accuracy), reverse=True)
        choices += [("", self._zero_cost_change_cells(change, is_complete), change.config) for change in changes]
        is_measured = not has_unfinished_accuracy(session, config)
        value_text = target_value_span(session, own_accuracy)[0]
        samples_text = f", all on {counted_noun_text(min(totals), 'sample')}" if len(totals) > 1 else ""
        items = [
            PickerItem("", "", config, cells=(f"as it is{samples_text}", "", value_text if is_measured else "…", ""))
        ]
        key_count = 9 if is_complete else min(9, undo_count)
        items += [
            PickerItem(str(index) if index <= key_count else "", text, choice, cells=cells)
            for index, (text, cells, choice) in enumerate(choices, 1)
        ]
        if not is_complete:
            items.append(PickerItem("", "further values", "", "are being measured", is_pending=True))
        qdq_refusal = self._qdq_removal_refusal_reason()
        items.append(PickerItem("" if qdq_refusal else "q", "unused Q/DQ out", _QDQ_ANSWER, qdq_refusal))
        row_reasons = find_refusal_reasons(outline, config, group) if group is not None else {}
        network_reasons = {**self._find_network_refusal_reasons(config)}
        for title in dict.fromkeys((*row_reasons, *network_reasons)):
            if network_reasons.get(title) and row_reasons.get(title, "-"):
                items.append(PickerItem("", f"{title}, all {len(outline.groups)} layers:", "", network_reasons[title]))
            elif row_reasons.get(title):
                items.append(PickerItem("", f"{title}, this layer:", "", row_reasons[title]))
        return items

    def _list_zero_cost_remedies(self) -> list[ev.ZeroCostChange]:
        """Returns the zero-cost changes among the measured remedies of the group. The list shows their values at
        once."""
        group, config = self._zero_cost_subject
        remedies = self.session.results.find_value(ev.REMEDIES, (group.name, config)) if group is not None else None
        return [
            ev.ZeroCostChange(remedy.label, remedy.config, accuracy=remedy.accuracy)
            for remedy in remedies or ()
            if remedy.key == ev.ZERO_COST_KEY
        ]

    def _zero_cost_change_cells(self, change: ev.ZeroCostChange, is_complete: bool) -> tuple[str, ...]:
        """Returns the cells of a zero-cost change: label, layers, value in the unit of the target, and cost.

        The value can be known before this list has it, for example from the detail pane.
        """
        accuracy = change.accuracy
        if accuracy is None and not has_unfinished_accuracy(self.session, change.config):
            accuracy = self.session.results.get_results_or_empty(change.config).accuracy
        value_text = target_value_span(self.session, accuracy)[0] if accuracy is not None else "…"
        cost_text = "none"
        if change.added_kernels is not None and change.added_kernels > 0:
            cost_text = f"+{counted_noun_text(change.added_kernels, 'kernel')}"
        elif change.added_kernels is None and not is_complete and self.session.can_preview_engines:
            cost_text = "…"
        if change.attention_kernels is not None and change.attention_kernels[0] != change.attention_kernels[1]:
            cost_text += f", MHA {change.attention_kernels[0]}→{change.attention_kernels[1]}"
        label = change.label.removesuffix(LEAVES_FILE_SUFFIX)
        return (
            label,
            "all" if change.is_for_network else "this",
            value_text,
            cost_text + (", leaves file" if label != change.label else ""),
        )
