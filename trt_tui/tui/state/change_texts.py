"""The changes of a session in plain words, and the table of its history."""

import time
from collections import Counter
from collections.abc import Mapping

from trt_tui.core.moves.config import PrecisionConfig, list_config_differences
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import counted_noun_text
from trt_tui.session.history import ConfigNote, UserState
from trt_tui.session.session import Session
from trt_tui.tui.config_status import decisive_value_span, target_outcome_line
from trt_tui.tui.spans import Line, pad_or_shorten, shorten_middle
from trt_tui.tui.state.marks import CURSOR_MARK

_MAX_LISTED_CHANGES = 3
"""The maximum number of changes of one step that are listed one by one."""

_TIME_WIDTH, _CONFIG_WIDTH, _VALUE_WIDTH, _OUTCOME_WIDTH = 12, 10, 10, 6
"""The widths of the columns of the history in cells, besides the change."""

_NARROW_CONFIG_WIDTH, _MIN_WIDTH_WITH_ACCURACY = 7, 64
"""The width of the column of configs in a narrow history, and the width from which the history has accuracies."""


def change_text(session: Session, before: UserState, after: UserState, titles: Mapping[str, str]) -> str:
    """Returns a change in plain words: "enc/conv: INT8 → FP32", "target: sqnr>=20 → sqnr>=14".

    "" if the two states are equal.

    Args:
        titles: The displayed names of fusion groups, by name.
    """
    texts = []
    outline = session.outline or session.preliminary_outline
    if before.config != after.config and outline is not None:
        texts += _config_change_texts(before.config, after.config, outline, titles)
    if before.target_text != after.target_text:
        texts.append(f"target: {before.target_text or 'default'} → {after.target_text or 'default'}")
    if before.filter_text != after.filter_text:
        texts.append(f"filter: {after.filter_text}" if after.filter_text else f"filter {before.filter_text} removed")
    if before.preview_gpu != after.preview_gpu:
        texts.append(f"GPU of previews: {_gpu_text(before.preview_gpu)} → {_gpu_text(after.preview_gpu)}")
    texts += _label_change_texts(session, before, after)
    more_count = len(texts) - _MAX_LISTED_CHANGES
    more_texts = [f"{more_count} more"] * (more_count > 0)
    return ", ".join([*texts[:_MAX_LISTED_CHANGES], *more_texts])


def _config_change_texts(before: PrecisionConfig, after: PrecisionConfig, outline: NetworkOutline,
                         titles: Mapping[str, str]) -> list[str]:
    """Returns a text for each pair of old and new decision: the name of one subject, or the number of several."""
    differences = list_config_differences(before, after, outline)
    counts = Counter((line.move_class, line.first_text, line.second_text) for line in differences)
    texts = []
    for (move_class, first_text, second_text), count in counts.items():
        subject = next(line.subject for line in differences
                       if (line.move_class, line.first_text, line.second_text) == (move_class, first_text, second_text))
        title = move_class.difference_title(
            titles.get(subject, subject) if count == 1 else counted_noun_text(count, move_class.subject_kind.noun))
        texts.append(f"{title}: {first_text} → {second_text}")
    if before.tf32 != after.tf32:
        texts.append("TF32 allowed" if after.tf32 else "TF32 not allowed")
    return texts


def _gpu_text(compute_capability: tuple[int, int] | None) -> str:
    return "default" if compute_capability is None else "SM{}{}".format(*compute_capability)


def _label_change_texts(session: Session, before: UserState, after: UserState) -> list[str]:
    names = session.config_names

    def find_name(config: PrecisionConfig, chosen_names: Mapping[PrecisionConfig, str]) -> str:
        return chosen_names.get(config) or names.find_numbered_name(config)

    texts = [f"{find_name(config, before.chosen_names)} named {find_name(config, after.chosen_names)}"
             for config in {**before.chosen_names, **after.chosen_names}
             if before.chosen_names.get(config) != after.chosen_names.get(config)]
    for config in {**before.notes, **after.notes}:
        first, second = before.notes.get(config, ConfigNote()), after.notes.get(config, ConfigNote())
        name = find_name(config, after.chosen_names)
        if first.pinned != second.pinned:
            texts.append(f"{name} {'pinned' if second.pinned else 'unpinned'}")
        if first.comment != second.comment:
            texts.append(f"{name}: {second.comment or 'comment removed'}")
    return texts


def history_title_line(width: int) -> Line:
    """Returns the column titles of the history."""
    config_width, accuracy_title = (_CONFIG_WIDTH, f"{'accuracy':>{_VALUE_WIDTH}} ") if _is_wide(width) else (
        _NARROW_CONFIG_WIDTH, "")
    return [(f"   {'time':<{_TIME_WIDTH}}{'change':<{_change_width(width)}} {'config':<{config_width}}"
             f"{accuracy_title}{'target':<{_OUTCOME_WIDTH}}", "dim")]


def _is_wide(width: int) -> bool:
    """Returns True if the history has room for accuracies and long names of configs beside the changes."""
    return width >= _MIN_WIDTH_WITH_ACCURACY


def _change_width(width: int) -> int:
    other_width = _CONFIG_WIDTH + _VALUE_WIDTH + 1 if _is_wide(width) else _NARROW_CONFIG_WIDTH
    return max(12, width - _TIME_WIDTH - other_width - _OUTCOME_WIDTH - 5)


def history_lines(session: Session, titles: Mapping[str, str], width: int) -> list[tuple[int, Line]]:
    """Returns the index and the line of each step of the history, the newest first.

    A line has the time, the change in plain words, the config, and the accuracy that its outcome is about. Undone steps
    are dim.
    """
    steps, current_index = session.history.steps, session.history.current_index
    lines = []
    for index in reversed(range(len(steps))):
        state = steps[index].state
        text = change_text(session, steps[index - 1].state, state, titles) if index else "the beginning"
        value_text, value_style = decisive_value_span(session, state.config)
        outcome = target_outcome_line(session.config_target_outcomes(state.config)) or [("", "")]
        is_current, style = index == current_index, "dim" if index > current_index else ""
        config_width = _CONFIG_WIDTH if _is_wide(width) else _NARROW_CONFIG_WIDTH
        name = shorten_middle(session.config_names.get(state.config, "–"), config_width - 1)
        lines.append((index, [
            (f" {CURSOR_MARK if is_current else ' '} ", "strong"),
            (f"{clock_text(steps[index].time):<{_TIME_WIDTH}}", "dim"),
            (f"{pad_or_shorten(text or 'no difference', _change_width(width))} ", "strong" if is_current else style),
            (f"{name:<{config_width}}", style),
            *[(f"{value_text:>{_VALUE_WIDTH}} ", value_style or style)] * _is_wide(width),
            (f"{outcome[0][0]:<{_OUTCOME_WIDTH}}", outcome[0][1])]))
    return lines


def clock_text(seconds: float, current_time: float | None = None) -> str:
    """Returns a Unix time as text: "14:02:11" for today, else with the day; "" for 0, or for an impossible time."""
    try:
        moment = time.localtime(seconds)
        today = time.localtime(current_time)[:3]
    except (OverflowError, ValueError, OSError):  # a time from a file
        return ""
    return "" if not seconds else time.strftime("%H:%M:%S" if moment[:3] == today else "%d %b %H:%M", moment)
