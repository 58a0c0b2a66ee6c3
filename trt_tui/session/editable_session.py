"""The part of a session that its user changes: precisions, ranges, configs, filter and names, with undo."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from trt_tui.core.calibration.range_methods import RANGE_METHODS, list_range_methods
from trt_tui.core.calibration.user_ranges import parse_amax
from trt_tui.core.lowering.folded_constants import replace_edited_file_precisions, without_stale_roundings
from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.measure.unused_qdq import QdqRemoval
from trt_tui.core.moves.config import PrecisionConfig, find_next_precision
from trt_tui.core.moves.constant_moves import RoundingMove
from trt_tui.core.moves.layer_moves import BarrierMove, RangeMove
from trt_tui.core.moves.network_method import list_range_tensors, remove_network_range_method
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, TYPES_WITH_RANGES_TEXT
from trt_tui.core.search import Evaluation
from trt_tui.errors import InputError, NotReadyError
from trt_tui.formatting import counted_noun_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.measuring_session import MeasuringSession


def find_stepped_precision(config: PrecisionConfig, group: FusionGroup, upwards: bool) -> Precision:
    """Returns the precision of a fusion group after one step up or down in the precisions of the config.

    A step down does not pass the file precision of a group that has it by default. Another precision of the same rank
    has other scales, so that a step up and a step down would not lead back to the file.
    """
    current = config.precision_of(group)
    found = find_next_precision(group, current, upwards, config.precision_steps)
    if upwards or config.default_precision_of(group) is not Precision.FILE:
        return found
    file_rank, current_rank = group.precision_rank(Precision.FILE), group.precision_rank(current)
    is_reached = found is current or group.precision_rank(found) <= file_rank
    return Precision.FILE if file_rank < current_rank and is_reached else found


class EditableSession(MeasuringSession):
    """A session that its user can change, with undo. A changed config is measured at once.

    `SessionState.set_target` changes the target, with undo too.
    """

    def toggle_fp32(self, groups: Iterable[FusionGroup]) -> None:
        """Toggles fusion groups between FP32 and their default precisions.

        If all groups run in FP32, they return to their defaults. If not, all are raised to FP32.
        """
        groups = list(groups)
        self._apply_config_change(self.config.with_toggled_fp32(groups), groups)

    def toggle_barrier(self, group: FusionGroup) -> None:
        """Adds or removes a fusion barrier behind a fusion group.

        Raises:
            InputError: The result of the group cannot be an additional network output.
        """
        config = self.config
        if group.final_tensor in config.get_moves(BarrierMove):
            config = config.without_moves(BarrierMove, [group.final_tensor])
        else:
            outline = self.opened_network.outline
            if refusal := BarrierMove().refusal_reason(outline, group.final_tensor):
                raise InputError(f"{group.name} cannot have a fusion barrier", refusal, "")
            config = config.with_moves({group.final_tensor: BarrierMove()})
        self._apply_config_change(config, [group])

    def step_precisions(self, groups: Iterable[FusionGroup], upwards: bool) -> None:
        """Moves fusion groups one step up or down in the precisions of the config, by default INT8, FP16 and FP32."""
        old_config, groups = self.config, list(groups)
        config = old_config
        for group in groups:
            config = config.with_group_precision([group], find_stepped_precision(old_config, group, upwards))
        self._apply_config_change(config, groups)

    def set_precision(self, groups: Iterable[FusionGroup], precision: Precision) -> None:
        """Gives fusion groups a precision. Groups that cannot run in the precision are left unchanged."""
        groups = list(groups)
        self._apply_config_change(self.config.with_group_precision(groups, precision), groups)

    def apply_next_range_method(self, group: FusionGroup) -> str:
        """Applies the next range method to the inputs of a fusion group and returns the name of the method.

        If the statistics of the inputs are unknown, they are requested first.

        Raises:
            InputError: The group is not quantized.
            NotReadyError: The statistics of the group are not measured yet.
        """
        precision = self.config.precision_of(group)
        tensors = [site.tensor for site in group.calibrated_qdq_sites(precision)]
        if not tensors:
            raise InputError(f"{group.name} has no quantized inputs",
                             f"only layers in {TYPES_WITH_RANGES_TEXT} have ranges", "")
        if not self.config.fixed_range_tensors.isdisjoint(tensors):
            raise InputError(f"the channels of {group.name} are scaled", "the range depends on the factors",
                             "Undo the change of its channels first.")
        details = self.results.find(GROUP_DETAILS, group.name)
        if details is None or any(tensor not in details.tensors for tensor in tensors):
            self.request_group_details(group)
            raise NotReadyError("its ranges are still being measured", "", "Try again in a moment.")
        base_method = self.calibration.method if self.calibration is not None else "minmax"
        methods = [
            base_method, *(name for name in list_range_methods(QUANTIZED_TYPES[precision]) if name != base_method)
        ]
        current = self.config.range_moves.get(tensors[0])
        current_method = current.method if current is not None and current.method in methods else base_method
        next_method = methods[(methods.index(current_method) + 1) % len(methods)]
        config = self.config
        for tensor in tensors:
            tensor_stats = details.tensors[tensor].amax_by_range_method(precision)
            choice = None if next_method == base_method else RangeMove(tensor_stats[next_method], next_method)
            config = config.with_range(tensor, choice)
        self._apply_config_change(config, [group])
        return next_method

    def set_ranges(self, tensors: Iterable[str], range_text: str) -> None:
        """Requests a range for tensors: an amax, a range method, ``p99.9`` or ``top5-mean``.

        The config changes once, when the ranges are measured.

        Raises:
            InputError: The text is not a valid range.
        """
        parse_amax(range_text)
        self.send_request(rq.SetRanges(self.config, tuple((tensor, range_text) for tensor in dict.fromkeys(tensors))))

    def apply_ranges(self, range_moves: Mapping[str, RangeMove]) -> None:
        """Applies ranges to tensors as one change of the config."""
        outline = self.outline
        self._apply_config_change(self.config.with_moves(range_moves), [
            group for group in (outline.groups if outline is not None else ())
            if any(site.tensor in range_moves for site in group.activation_qdq_sites())])

    def compare_range_methods(self, methods: Iterable[str] = RANGE_METHODS) -> None:
        """Requests the accuracy of the config with the ranges of each range method."""
        self.results.values_of(ev.METHOD_COMPARISON).clear()
        self.send_request(
            rq.CompareRangeMethods(remove_network_range_method(self.config, self.opened_network.outline),
                                   tuple(methods)))

    @property
    def has_method_comparison(self) -> bool:
        """True if the range methods have been compared for the current config."""
        return (self.method_comparison is not None and not self.pending_requests.has_request(rq.CompareRangeMethods) and
                self.method_comparison.config == remove_network_range_method(self.config, self.opened_network.outline))

    def use_range_method(self, method: str) -> None:
        """Applies the ranges of a range method to all tensors, as one change; ranges set by hand stay.

        If the method is that of the calibration, the change is made at once. If not, it is made when the ranges are
        measured.
        """
        outline = self.opened_network.outline
        config = remove_network_range_method(self.config, outline)
        if self.calibration is not None and method == self.calibration.method:
            self._apply_config_change(config, outline.groups)
            return
        tensors = tuple(tensor for tensor in list_range_tensors(outline) if tensor not in config.range_moves)
        self.send_request(rq.CalibrateRanges(method, tensors, config))

    def apply_qdq_removal(self, removal: QdqRemoval) -> None:
        """Makes the config without unused Q/DQ the current config, as one change."""
        self._apply_config_change(removal.config,
                                  [self.opened_network.outline.get_group(name) for name in removal.move_reasons],
                                  removal.move_reasons)

    def adopt_search_config(self, config: PrecisionConfig, evaluation: Evaluation | None) -> bool:
        """Makes a config that the search offers the current config, as one change.

        Args:
            evaluation: The evaluation of the config in the search; None if there is none.

        Returns:
            False if there is no search, or the config is the current config already.
        """
        search_status = self.search_status
        if search_status is None or config == self.config:
            return False
        before = self.config.precision_moves
        changed = [group for group in self.opened_network.outline.groups
                   if config.precision_moves.get(group.name) != before.get(group.name)]
        search_status.adopted_config = config
        end_event = search_status.end_event
        if evaluation is not None and end_event is not None and not end_event.has_other_samples:
            self.results.get_or_create_results(config).store_accuracy(evaluation.target_result.accuracy)
        self._apply_config_change(config, changed, search_status.find_move_reasons(config))
        return True

    def set_config(self, config: PrecisionConfig, groups: Iterable[FusionGroup] = ()) -> None:
        """Makes a config the current config.

        Args:
            groups: The fusion groups that change, whose rows show the time of the change.
        """
        self._apply_config_change(config, groups)

    def set_filter(self, text: str) -> None:
        """Makes a text the filter of the rows; "" removes the filter."""
        with self.undoable_change():
            self.filter_text = text

    def rename_config(self, config: PrecisionConfig, name: str) -> None:
        """Gives a config a name.

        Raises:
            InputError: The errors of `ConfigNames.rename_config`.
        """
        with self.undoable_change():
            self.config_names.rename_config(config, name)

    def undo(self) -> bool:
        """Undoes the last change of the user. Returns True if there was a change."""
        return self._go_through_history(self.history.undo)

    def redo(self) -> bool:
        """Redoes the last undone change. Returns True if there was one."""
        return self._go_through_history(self.history.redo)

    def _go_through_history(self, move_in_history: Callable[[], bool]) -> bool:
        """Restores the state to which a function has moved the history. Returns the result of the function."""
        self.history.replace_state(self.user_state)
        earlier_config = self.config
        if not move_in_history():
            return False
        state = self.history.state
        if state.target_text != (self.target_text or ""):
            self.target_text = state.target_text or None
            self.set_initial_target()
            self.update_target_baseline()
        self.filter_text, self.choice_reasons = state.filter_text, dict(state.choice_reasons)
        self.config_names.restore_chosen_names(state.chosen_names)
        if self.config != earlier_config:
            self._save_and_measure_config()
        else:
            self.save_session()
        return True

    def _apply_config_change(self, config: PrecisionConfig, groups: Iterable[FusionGroup] = (),
                             choice_reasons: Mapping[str, str] | None = None) -> None:
        """Makes a config the current one and measures it.

        Args:
            groups: The fusion groups that change, whose rows show the time of the change.
            choice_reasons: The reasons for moves of the config, by group or tensor.
        """
        outline = self.outline
        if outline is not None and (fresh := without_stale_roundings(outline, config)) != config:
            count = len(config.get_moves(RoundingMove)) - len(fresh.get_moves(RoundingMove))
            self.notice = f"{counted_noun_text(count, 'rounding')} removed: the change gives other weights to round"
            config = fresh
        if outline is not None and (written := replace_edited_file_precisions(outline, config,
                                                                              outline.groups)) != config:
            count = sum(written.precision_of(group) is not config.precision_of(group) for group in outline.groups)
            self.notice = (f"{counted_noun_text(count, 'layer')} in the nearest precision instead of that in the file: "
                           "other changes edit the weights")
            config = written
        self.history.replace_state(self.user_state)
        self.choice_reasons |= choice_reasons or {}
        if self.history.push_state(replace(self.user_state, config=config)):
            change_time = time.time()
            self.group_change_times.update((group.name, change_time) for group in groups)
            self._save_and_measure_config()

    def _save_and_measure_config(self) -> None:
        self.config_names.get_config_name(self.config)
        self.save_session()
        if self.automatic and self.data_summary is not None:
            self.send_request(rq.MeasureWhatIf(self.config, with_shares=True))
            self.request_preview()
            self.request_toggles()
