"""The hint line: the recommended next step and the keys for it."""

import itertools
from dataclasses import dataclass

from trt_tui.core.lowering.lowering_checks import reduces_precision
from trt_tui.core.measure.results import ConfigResults
from trt_tui.core.precision import Precision
from trt_tui.jobs.requests import BuildEngine, MeasureToggles
from trt_tui.session.jobs import FAILED
from trt_tui.session.session import Session
from trt_tui.tui.config_status import (
    config_meets_target_simulated,
    config_name,
    exported_run_meets_target,
    has_unfinished_accuracy,
    is_measuring_current_config,
    meets_target,
)
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import shorten_path
from trt_tui.tui.state import engine_texts
from trt_tui.tui.state.config_list import ToggleResult, find_toggle_result
from trt_tui.tui.state.row_values import RowValues

_MAX_JUDGED_RAISES = 20
"""The maximum number of rows whose raise is judged at each key."""

MAX_NAME_CELLS = 60, 24
"""The maximum width of a row name in the longest form of a hint, and in all other forms."""


@dataclass(frozen=True)
class Hint:
    """A recommended next step, in several lengths.

    Attributes:
        forms: The text from the longest to the shortest form; empty if there is no hint.
        actions: The ids of the actions whose keys the text names, in the order of the key presses.
        group: The name of the fusion group that the actions raise; "" if they raise no group.
    """

    forms: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    group: str = ""

    @property
    def text(self) -> str:
        """The longest form of the hint; "" if there is no hint."""
        return self.forms[0] if self.forms else ""

    def __bool__(self) -> bool:
        return bool(self.forms)


_MEASURING_HINT = Hint(("still measuring",))
"""The hint while values are not final, when no step can be recommended."""


def next_step_hint(session: Session, row_values: RowValues | None, cursor_group: str = "",
                   is_typing: bool = False) -> Hint:
    """Returns the hint for the current state of the session. No step is recommended while its values are not final.

    Args:
        cursor_group: The name of the fusion group under the cursor of the focused layer list; "" if there is none.
        is_typing: True if the filter field has the focus.
    """
    if session.outline is None or row_values is None:
        return Hint()
    if is_typing:
        return Hint((f"{shown_key('open')} goes to the rows, {shown_key('close')} shows all of them again",))
    if session.data_summary is None:
        return Hint(("next: reopen with --data to measure accuracy",))
    if session.data_summary.is_random and session.get_run_results(
            "int8").accuracy is None and not is_measuring_current_config(session):
        return Hint((f"next: reopen with --data to measure accuracy, or {shown_key('compare')} compares on random "
                     "inputs",
                     f"next: reopen with --data, or {shown_key('compare')} compares"), ("compare",))
    if session.is_building:
        return Hint()
    if session.is_searching:
        has_best = session.search_status is not None and session.search_status.best_config is not None
        return Hint((f"{shown_key('find')} shows the best so far",), ("find",)) if has_best else Hint()
    if _has_search_result_for_config(session):
        return Hint((f"next: {_search_key_text(session)}",), ("find",))
    if has_unfinished_accuracy(session, session.config):
        return _MEASURING_HINT if is_measuring_current_config(session) else Hint(
            (f"next: {shown_key('compare')} compares", ), ("compare", ))
    if engine_hint := _engine_hint(session, row_values, cursor_group):
        return engine_hint
    is_reached = config_meets_target_simulated(session, session.config)
    if is_reached is None and session.target is not None and not reduces_precision(session.outline, session.config):
        return Hint((f"every row is in FP32: {shown_key('undo')} undoes, or {shown_key('toggle')} lowers a row",
                     f"{shown_key('toggle')} lowers a row"), ("toggle",))
    if is_reached is None:
        return _raise_row_hint(session, row_values, cursor_group) if session.target is None else Hint()
    if not is_reached:
        return _raise_row_hint(session, row_values, cursor_group)
    if _has_failed_build(session):
        return Hint((f"{shown_key('log')} shows why {config_name(session)} was not "
                     f"{'built' if session.builder is not None else 'executed'}",), ("log",))
    if is_measuring_current_config(session) and (exported_hint := _exported_hint(session)):
        return exported_hint  # the comparison after a resume sends the stored builds and executed exports
    action_text = "builds {} and confirms it" if session.builder is not None else "executes the export of {}"
    return Hint((f"next: {shown_key('build')} {action_text.format(config_name(session))}",), ("build",))


def _has_search_result_for_config(session: Session) -> bool:
    """Returns True if a search from the current config ended with another config that meets the target."""
    search_status = session.search_status
    return (search_status is not None and search_status.end_event is not None and search_status.is_target_met
            and search_status.request.config == session.config and search_status.best_config != session.config)


def _exported_hint(session: Session) -> Hint:
    """Returns the hint for a config that was exported; an empty hint if it was not."""
    is_exported = session.config in session.config_names.exported_configs
    return Hint((f"{config_name(session)} is exported",)) if is_exported else Hint()


def _has_failed_build(session: Session) -> bool:
    """Returns True if the last build of the current config, or the last execution of its export, failed."""
    outcome = next((job.outcome for job in reversed(session.pending_requests.jobs)
                    if isinstance(job.request, BuildEngine) and job.request.config == session.config), "")
    return outcome == FAILED


def _search_key_text(session: Session) -> str:
    """Returns the effect of the search key: it starts a search, or shows the last one."""
    search_status = session.search_status
    has_result = search_status is not None and search_status.best_config is not None
    return f"{shown_key('find')} {'shows what the search found' if has_result else 'finds a fix'}"


def find_worst_row(session: Session, row_values: RowValues) -> str | None:
    """Returns the name of the fusion group to examine first.

    This is the first group, in network order, with NaN or Inf. Without such a group, it is the group with the largest
    error share of all groups that can be raised to FP32. Groups whose raise is known not to improve the value that the
    target bounds come last. None if there is neither.
    """
    groups = row_values.model.outline.groups
    if row_values.nonfinite_groups:
        return next(group.name for group in groups if group.name in row_values.nonfinite_groups)
    shares, config = session.get_run_results("config").shares, session.config
    harmful_groups = [group for group in groups if group.name in shares and shares[group.name].fraction > 0]
    harmful_groups.sort(key=lambda group: -shares[group.name].fraction)
    raisable_groups = (group for group in harmful_groups
                       if config.with_toggled_fp32([group]).precision_of(group) is Precision.FP32)
    first: str | None = None
    for group in itertools.islice(raisable_groups, _MAX_JUDGED_RAISES):
        if _can_improve(session, find_toggle_result(session, [group])):
            return group.name
        first = first or group.name
    return first


def _can_improve(session: Session, toggle: ToggleResult) -> bool:
    """Returns False if a toggled row was measured and does not improve the value that the target bounds."""
    accuracy = session.get_run_results("config").accuracy
    if session.target is None or accuracy is None or toggle.margin is None or toggle.is_partial:
        return True
    margin = session.target.margin_to_bound(accuracy)
    return margin is None or toggle.margin > margin


def _raise_row_hint(session: Session, row_values: RowValues, cursor_group: str, prefix: str = "next: ") -> Hint:
    """Returns the hint for a config that misses the target: start a search, or raise the worst row."""
    if is_measuring_current_config(session):
        return Hint(
            (f"still measuring {'the shares' if not session.get_run_results('config').shares else 'all shares'}",
             *_MEASURING_HINT.forms))
    if session.fp32_miss_text:
        return Hint((f"{session.fp32_miss_text}: no raised row meets it", session.fp32_miss_text))
    search_text = _search_key_text(session)
    worst = find_worst_row(session, row_values)
    outline, config = row_values.model.outline, session.config
    forms = [prefix + search_text]
    if all(group.name in session.get_run_results("config").shares for group in outline.groups):
        forms.insert(0, f"{prefix.removeprefix('next: ')}no single raise helps, {search_text}")
    search_hint = Hint(tuple(forms), ("find",))
    if worst is None or config.with_toggled_fp32([outline.get_group(worst)]).precision_of(
            outline.get_group(worst)) is not Precision.FP32:
        return search_hint
    toggle = find_toggle_result(session, [outline.get_group(worst)])
    if worst not in row_values.nonfinite_groups and not _can_improve(session, toggle):
        return search_hint
    is_simulated_met = config_meets_target_simulated(session, config)
    row_count = None if is_simulated_met else count_rows_to_raise_for_target(
        session, session.results.get_results_or_empty(config))
    actions: tuple[str, ...] = ("toggle",) if cursor_group == worst else ("first_nan", "toggle")
    if cursor_group == worst:
        action_texts = [f"{shown_key('toggle')} raises this one"] * 2
    else:
        keys = ", ".join(shown_key(action) for action in actions)
        is_settled = toggle.value_text and not toggle.is_partial or not is_measuring_toggles(session)
        action_texts = [f"{keys} raises {shorten_path(row_values.model.titles[worst], width)}" if is_settled else
                        f"{keys} raises the worst row so far" for width in MAX_NAME_CELLS]
    gain = f" → {row_values.metric_title} {toggle.value_text}" if toggle.value_text and not toggle.is_partial else ""
    sure_gain = f"{gain} {toggle.margin_of_error_text}".rstrip() if gain else ""
    rows_text = f"; {row_count} rows to FP32 meet the target" if row_count is not None and row_count > 1 else ""
    return Hint((f"{prefix}{search_text}, or {action_texts[0]}{sure_gain}{rows_text}",
                 f"{prefix}{search_text}, or {action_texts[1]}{gain}", f"{prefix}{search_text}, or {action_texts[1]}",
                 f"{prefix}{action_texts[1]}"), actions, worst)


def is_measuring_toggles(session: Session) -> bool:
    """Returns True while values of toggled rows of the current config are measured, which can change the worst row."""
    return any(isinstance(request, MeasureToggles) and request.config == session.config
               for request in session.pending_requests.values())


def count_rows_to_raise_for_target(session: Session, config_results: ConfigResults) -> int | None:
    """Returns the number of worst rows that must be raised together to meet the target; None if it is unknown."""
    if session.target is None:
        return None
    return next((count for count, accuracy in enumerate(config_results.cumulative, 1)
                 if all(target.is_met_by(accuracy) for target in session.targets) and meets_target(session, accuracy)),
                None)


def _engine_hint(session: Session, row_values: RowValues, cursor_group: str) -> Hint:
    """Returns the hint that follows from the engine or the executed export of the config; empty if neither exists."""
    result, exported_run = session.get_run_results("config").engine_result, session.get_run_results(
        "config").exported_run
    is_simulated_met = config_meets_target_simulated(session, session.config)
    export = _exported_hint(session) or Hint((f"next: {shown_key('export')} exports precision.json",
                                               f"next: {shown_key('export')} exports"), ("export",))
    if result is None and exported_run is not None:
        if is_simulated_met and exported_run_meets_target(session, exported_run) is False:
            return _raise_row_hint(session, row_values, cursor_group, "the exported network misses the target: ")
        return export if is_simulated_met else Hint()
    if result is None:
        return Hint()
    if alert_line := engine_texts.engine_alert_text(session):
        return Hint((f"engine: {alert_line}",))
    if result.accuracy is None and export.actions:
        export = Hint((f"next: {shown_key('export')} exports; the engine was built but cannot run here",
                       f"next: {shown_key('export')} exports"), ("export",))
    passes = meets_target(session, result.accuracy) if result.accuracy is not None else None
    if passes is None:
        return export if is_simulated_met else Hint()
    if not passes:
        return _raise_row_hint(session, row_values, cursor_group,
                               "the build misses the target: ") if is_simulated_met else Hint()
    return export
