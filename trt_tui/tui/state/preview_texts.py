"""Texts about the preview of a config, for rows and details: the engine that a builder would make, if none was built.
"""

from collections.abc import Mapping

from trt_tui.core.engines.group_implementations import (
    BARRIER_SPLITS,
    BREAKS_MHA,
    NO_EFFECT,
    STANDALONE_QDQ,
    GroupImplementation,
    Preview,
    is_unrequested_precision,
)
from trt_tui.core.exporters.preview_report import groups_in_kernel_text
from trt_tui.core.measure.unused_qdq import find_unused_quantization_of_group
from trt_tui.core.moves.config import BarrierMove
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.formatting import counted_noun_text
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Span
from trt_tui.tui.state.marks import OTHER_PRECISION_MARK

_SHORT_MARKS = {STANDALONE_QDQ: "Q/DQ", BREAKS_MHA: "MHA split"}
_MARK_SENTENCES = {NO_EFFECT: "no effect: the engine is the same without this choice",
                   BREAKS_MHA: "splits MHA: without this choice the attention is one kernel",
                   BARRIER_SPLITS: "the fusion barrier takes kernels apart",
                   STANDALONE_QDQ: "unfused Q/DQ: a fusion did not happen"}


def find_shown_preview(session: Session, run: str = "config") -> Preview | None:
    """Returns the preview of a run's config; None if there is no preview, or if a built engine of the config replaces
    it."""
    results = session.get_run_results(run)
    if results.engine_result is not None and results.engine_result.implementations or results.preview is None:
        return None
    return results.preview


def preview_refusal_text(session: Session) -> str:
    """Returns the reason why the current config has no preview, and the remedy; "" if a preview exists or is not
    requested."""
    preview = session.get_run_results("config").preview
    preview_refusal = preview.refusal if preview is not None else session.preview_refusal
    if preview_refusal is None:
        return ""
    return (f"{preview_refusal.description}. {preview_refusal.next_step}" if preview_refusal.is_rtx_missing else
            f"refused by {_preview_builder_name(preview)}: {preview_refusal.description}")


def _preview_builder_name(preview: Preview | None) -> str:
    return preview.builder_text if preview is not None and preview.builder_release else "TensorRT-RTX"


def implementation_cell(preview: Preview, group: FusionGroup, requested_precision: Precision) -> Span:
    """Returns the preview of a fusion group in a few characters, for a column of the layer list.

    The text is the most important remark, ``in MHA``, or the precision with the number of other groups in the kernel
    (``INT8 +2``).
    """
    if preview.refusal is not None:
        is_named = preview.refusal.layer in (group.name, *group.layers) and preview.refusal.layer
        return ("refused", "bad") if is_named else ("", "dim")
    marks = list(preview.list_precision_independent_remarks(group))
    implementation = preview.implementations.get(group.name)
    if implementation is not None and is_unrequested_precision(group, requested_precision, implementation):
        shown_precision = implementation.implemented_precision(group.precision_shown_by_engine(requested_precision))
        other_text = f"{OTHER_PRECISION_MARK} {shown_precision.label if shown_precision is not None else '?'}"
        return (marks[0] if marks and marks[0] == NO_EFFECT else other_text, "warn")
    if marks:
        return (_SHORT_MARKS.get(marks[0], marks[0]), "warn")
    return (unmarked_implementation_cell(implementation, group, requested_precision), "dim")


def unmarked_implementation_cell(implementation: GroupImplementation | None, group: FusionGroup,
                                 requested_precision: Precision) -> str:
    """Returns the text of `implementation_cell` for a group without remarks."""
    if implementation is None:
        return ""
    if implementation.in_mha:
        return "in MHA"
    shown_precision = implementation.implemented_precision(group.precision_shown_by_engine(requested_precision))
    mates_text = f" +{len(implementation.kernel_mates)}" if implementation.kernel_mates else ""
    return (shown_precision.label if shown_precision is not None else "fused") + mates_text


def implementation_sentences(preview: Preview, group: FusionGroup, requested_precision: Precision,
                             titles: Mapping[str, str]) -> list[str]:
    """Returns sentences about the preview of a group: precision and kernel, neighbours, then one sentence for each
    remark."""
    title = f"preview {preview.builder_text}"
    if preview.refusal is not None:
        return [f"{title}: {preview.refusal.description}"] if preview.refusal.layer in (group.name,
                                                                                        *group.layers) else []
    implementation = preview.implementations.get(group.name)
    if implementation is None:
        return [f"{title}: no kernel is named after it"]
    shown_precision, requested_label = implementation.implemented_precision(
        group.precision_shown_by_engine(requested_precision)), group.precision_label(requested_precision)
    text = shown_precision.label if shown_precision is not None else "its kernel does not report types inside"
    if is_unrequested_precision(group, requested_precision, implementation):
        text = f"{OTHER_PRECISION_MARK} {text}, requested {requested_label}"
    parts = [f"{title}: {text}"]
    if implementation.kernel_mates:
        parts.append(
            f"{'one MHA kernel' if implementation.in_mha else 'one kernel'} with "
            f"{groups_in_kernel_text(implementation, group, titles)}")
    if implementation.cast_count:
        parts.append(f"{counted_noun_text(implementation.cast_count, 'cast')} around it")
    if implementation.reformat_count > implementation.cast_count:
        parts.append(
            f"{counted_noun_text(implementation.reformat_count - implementation.cast_count, 'reformat')} around it")
    unused = find_unused_quantization_of_group(group, requested_precision, implementation)
    unused_sentences = [f"{unused.description} (key {shown_key('free')} takes them out)"] if unused else []
    barrier_effects = [
        preview.barrier_effects[tensor]
        for tensor in BarrierMove.subject_kind.list_subjects_of_group(group)
        if tensor in preview.barrier_effects
    ]
    mark_sentences = [_MARK_SENTENCES[mark] for mark in preview.list_precision_independent_remarks(group)]
    return [" · ".join(parts), *unused_sentences, *mark_sentences,
            *(f"fusion barrier: {effect.description}" for effect in barrier_effects)]
