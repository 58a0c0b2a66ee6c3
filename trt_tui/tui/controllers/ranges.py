"""The actions on dynamic ranges: the next range method, a typed range, and the comparison of calibration methods."""

from trt_tui.core.calibration.range_methods import RANGE_METHODS
from trt_tui.core.calibration.user_ranges import parse_amax
from trt_tui.core.moves.config import find_network_range_method
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import TYPES_WITH_RANGES_TEXT
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.result_tables import find_best_range_method, method_comparison_table, ranking_column_title
from trt_tui.tui.controllers.presenter import Presenter
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import Picker, PickerItem, Prompt
from trt_tui.tui.table import Column


def range_error_text(text: str) -> str:
    """Returns the error in a typed range; "" if the range is valid."""
    try:
        parse_amax(text)
    except TrtTuiError as error:
        return f"{error.cause.rstrip('.')}. {error.next_step}"
    return ""


class RangeController(Presenter):
    """The part of the main screen for the ranges of the selected groups, and the comparison of range methods."""

    def show_set_ranges(self, event: ev.RequestedRangesReady) -> None:
        self.handle_config_change()
        if find_network_range_method(self.session.config, self.session.opened_network.outline):
            return  # the title of the config shows the method
        range_texts = [f"{move.label} ({move.origin_text})" for move in event.ranges.values()]
        self.show_message(
            f"range of "
            f"{counted_noun_text(len(range_texts), 'tensor')}: "
            f"{range_texts[0] if len(set(range_texts)) == 1 else 'set'}",
            "")

    def show_compared_methods(self, event: ev.ValueMeasured) -> None:
        if isinstance(event.value, ev.RangeMethodComparison) and len(event.value.rows) == len(RANGE_METHODS):
            self.show_message(f"calibration methods are compared: {shown_key('methods')} shows them", "")

    def _list_groups_with_ranges(self) -> list[FusionGroup]:
        config = self.session.config
        return [
            group for group in self.list_chosen_groups()
            if group.calibrated_qdq_sites(config.precision_of(group))
        ]

    def refuse_type_range(self) -> str:
        """Returns the reason why the ranges of the selected row cannot change; "" if they can change."""
        if self._list_groups_with_ranges():
            return "" if self.session.calibration is not None else "no ranges were measured yet"
        group = self.current_group
        if group is None:
            return f"no layer here is in {TYPES_WITH_RANGES_TEXT}: ranges matter there only"
        if not group.is_quantizable:
            return f"ranges matter in {TYPES_WITH_RANGES_TEXT} only: {group.refusal_reasons[Precision.INT8]}"
        precision = self.session.config.precision_of(group)
        if precision is Precision.FILE:
            return (f"it runs in file precision, with the scales of the file: {shown_key('precision')} puts it in "
                    f"{TYPES_WITH_RANGES_TEXT}")
        return f"it is in {precision.label}: ranges matter in {TYPES_WITH_RANGES_TEXT} only"

    def refuse_range(self) -> str:
        """Returns the reason why the selected row cannot have another range method; "" if it can."""
        if reason := self.refuse_type_range():
            return reason
        group, config = self.current_group, self.session.config
        if group is None or config.fixed_range_tensors.isdisjoint(
                site.tensor for site in group.calibrated_qdq_sites(config.precision_of(group))):
            return ""
        return "its channels are scaled, and the range depends on the factors"

    def do_range(self) -> None:
        """Applies the next range method to the inputs of the selected group; for several groups, asks for a range."""
        group = self.current_group
        if group is None:
            self._ask_for_range()
            return
        method = self.session.apply_next_range_method(group)
        self.handle_config_change()
        self.show_message(f"input range: {method}", "")

    def do_type_range(self) -> None:
        self._ask_for_range()

    def _ask_for_range(self) -> None:
        session, groups = self.session, self._list_groups_with_ranges()
        tensors = list(dict.fromkeys(site.tensor for group in groups
                                     for site in group.calibrated_qdq_sites(session.config.precision_of(group))))
        config_range = session.config.range_moves.get(tensors[0])
        amax = config_range.amax if config_range is not None else session.calibration.ranges.get(tensors[0]) \
            if session.calibration is not None else None
        title = f"Range of {tensors[0]}" if len(
            tensors) == 1 else f"Range of {counted_noun_text(len(tensors), 'tensor')}"

        def set_typed_range(text: str) -> None:
            session.set_ranges(tensors, text.strip())
            self.show_message("its values are being measured" if parse_amax(text.strip()) is None else "", "")

        value = f"{amax:.5g}" if amax is not None and len(tensors) == 1 else ""
        self.open_dialog(Prompt(title, value, "an amax like 2.5, minmax, percentile, entropy, mse, p99.9, top5-mean",
                                lambda text: range_error_text(text.strip())), set_typed_range)

    def do_methods(self) -> None:
        """Starts the comparison of calibration methods; after its end, shows the table and applies the chosen method.
        """
        session = self.session
        if session.method_comparison is None or not session.has_method_comparison:
            if not session.pending_requests.has_request(rq.CompareRangeMethods):
                session.compare_range_methods()
            self.show_message(
                f"calibration methods are being compared; {shown_key('methods')} shows them afterwards", "")
            return
        current_method = find_network_range_method(session.config, session.opened_network.outline)
        current_method = current_method or (session.calibration.method
                                            if session.calibration is not None else session.options.calib_method)
        (label, *titles), *table_rows = method_comparison_table(session)
        columns = [Column(label, min_width=18), *(Column(title, True, rank=int(title in ("worst sample", "s")))
                                                  for title in titles)]
        items = [PickerItem(str(index + 1), "", row.method, cells=tuple(cells))
                 for index, (cells, row) in enumerate(zip(table_rows, session.method_comparison.rows, strict=True))]

        def use_chosen_range_method(method: str) -> None:
            if method != current_method:
                session.use_range_method(method)
                self.handle_config_change()
                self.show_message(f"ranges by {method}: {shown_key('undo')} undoes them", "")

        title = f"Calibration methods; {find_best_range_method(session)} is best by {ranking_column_title(session)}"
        self.open_dialog(Picker(title, items, current_method, columns), use_chosen_range_method)
