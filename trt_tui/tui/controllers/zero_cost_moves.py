"""The action on zero-cost changes: the kinds of the table `ZERO_COST_KINDS`, each with its value before it is made."""

from collections.abc import Iterable
from dataclasses import replace

from trt_tui.core.measure.zero_cost_kind import LEAVES_FILE_SUFFIX
from trt_tui.core.measure.zero_cost_kinds import (
    find_network_refusal_reasons,
    find_refusal_reasons,
    list_zero_cost_moves,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.tui.config_status import accuracy_order, has_unfinished_accuracy, target_value_span
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem
from trt_tui.tui.state.engine_texts import preview_refusal_text
from trt_tui.tui.table import Column

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
            self.show_message("no Q/DQ can be taken out"
                                        + (f": the engine is worse without those of {kept[0]}" if kept else ""))
        elif self.session.config == removal.config:
            self.handle_config_change()
            self.show_message(f"{removal.summary}; {shown_key('undo')} undoes it", "")
        else:
            self.show_message("the config has changed, so its Q/DQ stay: "
                                        f"{shown_key('free')} tries it again")

    def _qdq_removal_refusal(self) -> str:
        """Returns the reason why no Q/DQ can be taken out of the config; "" if some can."""
        session = self.session
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

    def refuse_free(self) -> str:
        """Returns the reason why neither the selected row nor the network has a possible zero-cost change; "" if one
        has."""
        outline, config, group = self.session.opened_network.outline, self.session.config, self.current_group
        if group is not None and list_zero_cost_moves(outline, config, group):
            return ""
        reasons = {**self._find_network_reasons(config),
                   **(find_refusal_reasons(outline, config, group) if group is not None else {})}
        if not all((*reasons.values(), *self._find_network_reasons(config).values(), self._qdq_removal_refusal())):
            return ""
        return "; ".join(f"{title}: {refusal}" for title, refusal in reasons.items())

    def _find_network_reasons(self, config: PrecisionConfig) -> dict[str, str]:
        """Returns the reasons of `find_network_refusal_reasons`, which are found once for each config."""
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
        title = f"Zero-cost changes: {group.name}, and all layers" if group is not None else (
            "Zero-cost changes: all layers")
        value_title = session.target.column_title if session.target is not None else "SQNR"
        columns = [Column("change", min_width=18), Column("layers", rank=1), Column(value_title, True), Column("cost")]
        self._zero_cost_dialog = Picker(title, self._list_zero_cost_items(), session.config, columns)

        def apply_chosen_config(chosen_config: PrecisionConfig | str) -> None:
            if isinstance(chosen_config, str):
                session.request_qdq_removal()
                self.draw_all()
                return
            session.set_config(chosen_config, self._find_changed_groups(chosen_config))
            self.handle_config_change()

        self.open_dialog(self._zero_cost_dialog, apply_chosen_config)

    def fill_in_zero_cost_values(self, event: ev.ValueMeasured | ev.AccuracyMeasured) -> None:
        dialog = self._zero_cost_dialog
        if dialog is not None and dialog.is_mounted and dialog.is_running:
            items = self._list_zero_cost_items()
            if items != dialog.items:
                dialog.replace_items(items)

    def _list_zero_cost_items(self) -> list[PickerItem]:
        """Returns the entries of the list: the config as it is, changes to undo, possible changes, and reasons against
        the others.

        Changes are sorted by their values as soon as all values are known. Only then do digits choose them, because the
        entry of a digit would change before. Undos keep their places.
        """
        session, (group, config) = self.session, self._zero_cost_subject
        outline = session.opened_network.outline
        choices: list[tuple[str, tuple[str, ...], PrecisionConfig]] = []
        for kind, subject in list_zero_cost_moves(outline, config, group) if group is not None else ():
            subject_text = f" of {subject}" if group is not None and subject != group.name else ""
            choices.append((f"undo: {config.moves[kind.kind, subject].label}{subject_text}", (),
                            config.without_moves(kind, [subject])))
        undo_count = len(choices)
        known = session.results.find(ev.ZERO_COST_CHANGES, (group.name if group is not None else "", config))
        changes = list(known.changes if known is not None else self._list_known_changes())
        own_accuracy = session.results.get_results_or_empty(config).accuracy
        totals = {accuracy.total for accuracy in (own_accuracy, *(change.accuracy for change in changes))
                  if accuracy is not None}
        if len(totals) > 1:  # values beside each other are those of common samples
            own_accuracy = own_accuracy.on_compared_samples if own_accuracy is not None else None
            changes = [replace(change, accuracy=change.accuracy.on_compared_samples) if change.accuracy is not None
                       else change for change in changes]
        is_complete = known is not None and known.is_complete
        if is_complete:
            changes.sort(key=lambda change: accuracy_order(session, change.accuracy), reverse=True)
        choices += [("", self._change_cells(change, is_complete), change.config) for change in changes]
        is_measured = not has_unfinished_accuracy(session, config)
        value_text = target_value_span(session, own_accuracy)[0]
        samples_text = f", all on {counted_noun_text(min(totals), 'sample')}" if len(totals) > 1 else ""
        items = [PickerItem("", "", config, cells=(f"as it is{samples_text}", "", value_text if is_measured else "…",
                                                   ""))]
        key_count = 9 if is_complete else min(9, undo_count)
        items += [PickerItem(str(index) if index <= key_count else "", text, choice, cells=cells)
                  for index, (text, cells, choice) in enumerate(choices, 1)]
        if not is_complete:
            items.append(PickerItem("", "further values", "", "are being measured"))
        qdq_refusal = self._qdq_removal_refusal()
        items.append(PickerItem("" if qdq_refusal else "q", "unused Q/DQ out", _QDQ_ANSWER, qdq_refusal))
        row_reasons = find_refusal_reasons(outline, config, group) if group is not None else {}
        network_reasons = {**self._find_network_reasons(config)}
        for title in dict.fromkeys((*row_reasons, *network_reasons)):
            if network_reasons.get(title) and row_reasons.get(title, "-"):
                items.append(PickerItem("", f"{title}, all layers:", "", network_reasons[title]))
            elif row_reasons.get(title):
                items.append(PickerItem("", f"{title}, this layer:", "", row_reasons[title]))
        return items

    def _list_known_changes(self) -> list[ev.ZeroCostChange]:
        """Returns the changes of the group whose values the detail pane shows before the list is measured."""
        group, config = self._zero_cost_subject
        remedies = (self.session.results.find(ev.REMEDIES, (group.name, config)) or ()) if group is not None else ()
        return [ev.ZeroCostChange(remedy.label, remedy.config, False, remedy.accuracy) for remedy in remedies
                if remedy.key == ev.ZERO_COST_KEY]

    def _change_cells(self, change: ev.ZeroCostChange, is_complete: bool) -> tuple[str, ...]:
        """Returns the cells of a change: label, layers, value in the unit of the target, and cost.

        The value can be known before this list has it, for example from the detail pane.
        """
        accuracy = change.accuracy
        if accuracy is None and not has_unfinished_accuracy(self.session, change.config):
            accuracy = self.session.results.get_results_or_empty(change.config).accuracy
        value_text = target_value_span(self.session, accuracy)[0] if accuracy is not None else "…"
        cost_text = "free"
        if change.added_kernels is not None and change.added_kernels > 0:
            cost_text = f"+{counted_noun_text(change.added_kernels, 'kernel')}"
        elif change.added_kernels is None and not is_complete and self.session.can_preview_engines:
            cost_text = "…"
        if change.attention_kernels is not None and change.attention_kernels[0] != change.attention_kernels[1]:
            cost_text += f", MHA {change.attention_kernels[0]}→{change.attention_kernels[1]}"
        label = change.label.removesuffix(LEAVES_FILE_SUFFIX)
        return (label, "all" if change.is_for_network else "this", value_text,
                cost_text + (", leaves file" if label != change.label else ""))

    def _find_changed_groups(self, chosen_config: PrecisionConfig) -> Iterable[FusionGroup]:
        """Returns the groups on which the chosen config has other moves than the current one."""
        current = self.session.config
        names = {subject for kind, subject in current.moves.keys() | chosen_config.moves.keys()
                 if current.moves.get((kind, subject)) != chosen_config.moves.get((kind, subject))}
        return [group for group in self.session.opened_network.outline.groups if group.name in names]
