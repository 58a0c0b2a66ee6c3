"""The changes of a session in plain words."""

from collections import Counter
from collections.abc import Mapping

from trt_tui.core.moves.config import PrecisionConfig, list_config_differences
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import counted_noun_text
from trt_tui.session.history import UserState
from trt_tui.session.session import Session

_MAX_LISTED_CHANGES = 3
"""The maximum number of changes of one step that are listed one by one."""


def change_text(session: Session, before: UserState, after: UserState, titles: Mapping[str, str]) -> str:
    """Returns a change in plain words: "enc/conv: INT8 → FP32", "target: sqnr>=20 → sqnr>=14".

    "" if the two states are equal.

    Args:
        titles: The displayed names of fusion groups, by name.
    """
    texts = []
    outline = session.outline
    if before.config != after.config and outline is not None:
        texts += _config_change_texts(before.config, after.config, outline, titles)
    if before.target_text != after.target_text:
        texts.append(f"target: {before.target_text or 'default'} → {after.target_text or 'default'}")
    if before.filter_text != after.filter_text:
        texts.append(f"filter: {after.filter_text}" if after.filter_text else f"filter {before.filter_text} removed")
    texts += _name_change_texts(session, before, after)
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


def _name_change_texts(session: Session, before: UserState, after: UserState) -> list[str]:
    names = session.config_names

    def find_name(config: PrecisionConfig, chosen_names: Mapping[PrecisionConfig, str]) -> str:
        return chosen_names.get(config) or names.find_numbered_name(config)

    return [f"{find_name(config, before.chosen_names)} named {find_name(config, after.chosen_names)}"
            for config in {**before.chosen_names, **after.chosen_names}
            if before.chosen_names.get(config) != after.chosen_names.get(config)]
