"""What the rows and the detail say of what a builder would make of a config, where no engine of it was built."""

from collections.abc import Mapping, Sequence

from trt_tui.core.engines.made import Made, other_than
from trt_tui.core.engines.preview import ALONE, BREAKS_MHA, NO_EFFECT, SPLITS, Preview
from trt_tui.core.exporters.previewed import shared_with
from trt_tui.core.measure.kernels import kernel_change
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.spans import Line, Span
from trt_tui.words import plural

_SHORT = {ALONE: "Q/DQ", BREAKS_MHA: "MHA split"}
_MOST = 12
_SAID = {NO_EFFECT: "no effect: the engine is the same without this choice",
         BREAKS_MHA: "breaks MHA: without this choice the attention is one kernel",
         SPLITS: "the fusion barrier takes kernels apart",
         ALONE: "stand-alone Q/DQ: a fusion did not happen"}


def shown_preview(session: Session, run: str = "config") -> Preview | None:
    """The preview of a run's config; None where its own engine tells, or there is none."""
    known = session.measured(run)
    if known.engine is not None and known.engine.made or known.preview is None:
        return None
    return known.preview


def refusal(session: Session) -> str:
    """Why the current config has no preview, with how to get one; "" where it has, or it is not asked for."""
    preview = session.measured("config").preview
    refused = preview.refused if preview is not None else session.no_previews
    if refused is None:
        return ""
    return f"{refused.said}. {refused.next_step}" if refused.absent else f"refused by {_name(preview)}: {refused.said}"


def _name(preview: Preview | None) -> str:
    return preview.name if preview is not None and preview.release else "TensorRT-RTX"


def cell(preview: Preview, group: Group, asked: Precision) -> Span:
    """What is made of a group, for a column: its weightiest mark, ``in MHA``, or the type with how many share its
    kernel (``INT8 +2``)."""
    if preview.refused is not None:
        named = preview.refused.node in (group.name, *group.layers) and preview.refused.node
        return ("refused", "bad") if named else ("", "dim")
    marks = list(preview.choice_marks(group))
    made = preview.made.get(group.name)
    if made is not None and other_than(group, asked, made):
        seen = made.seen(group.seen_as(asked))
        first = f"≠ {seen.label if seen is not None else '?'}"
        return (marks[0] if marks and marks[0] == NO_EFFECT else first, "warn")
    if marks:
        return (_SHORT.get(marks[0], marks[0]), "warn")
    return (plain_cell(made, group, asked), "dim")


def plain_cell(made: Made | None, group: Group, asked: Precision) -> str:
    """The same of a group of which nothing is to be said."""
    if made is None:
        return ""
    if made.mha:
        return "in MHA"
    seen = made.seen(group.seen_as(asked))
    more = f" +{len(made.shares)}" if made.shares else ""
    return (seen.label if seen is not None else "fused") + more


def sentences(preview: Preview, group: Group, asked: Precision, titles: Mapping[str, str]) -> list[str]:
    """What is made of a group: type and kernel, what shares it and what is around it, then a sentence a mark."""
    where = f"preview {preview.name}"
    if preview.refused is not None:
        return [f"{where}: {preview.refused.said}"] if preview.refused.node in (group.name, *group.layers) else []
    made = preview.made.get(group.name)
    if made is None:
        return [f"{where}: no kernel has its name"]
    seen, wanted = made.seen(group.seen_as(asked)), group.label(asked)
    text = seen.label if seen is not None else "its kernel does not report types inside"
    if other_than(group, asked, made):
        text = f"≠ {text}, asked {wanted}"
    parts = [f"{where}: {text}"]
    if made.shares:
        parts.append(f"{'one MHA kernel' if made.mha else 'one kernel'} with {shared_with(made, group, titles)} "
                     "(u: FP32 for all of them)")
    if made.sums is not None:
        parts.append(f"summed in {made.sums.label}")
    if made.casts:
        parts.append(f"{plural(made.casts, 'cast')} around it")
    if made.reformats > made.casts:
        parts.append(f"{plural(made.reformats - made.casts, 'reformat')} around it")
    barred = [preview.barred[tensor] for tensor in Barrier.subject.of(group) if tensor in preview.barred]
    return [" · ".join(parts), *(_SAID[mark] for mark in preview.choice_marks(group)),
            *(f"fusion barrier: {one.said}" for one in barred)]


def scope_sentence(preview: Preview, groups: Sequence[Group], config: PrecisionConfig) -> str:
    """How many groups of a scope the builder runs in what, and how many otherwise than asked."""
    counts: dict[str, int] = {}
    for group in groups:
        if (made := preview.made.get(group.name)) is not None:
            seen = made.seen(group.seen_as(config.precision_of(group)))
            word = seen.label if seen is not None else "fused"
            counts[word] = counts.get(word, 0) + 1
    others = sum((made := preview.made.get(group.name)) is not None and other_than(
        group, config.precision_of(group), made) for group in groups)
    text = " · ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return f"preview {preview.name}: {text}" + (f" · {others} ≠ asked" if others else "") if text else ""


def kernel_lines(session: Session, one: PrecisionConfig, other: PrecisionConfig) -> list[Line]:
    """The kernels that the other config loses and gains, by their engines or else their previews; nothing where neither
    is known of both."""
    first, second = (session.results.of(config) for config in (one, other))
    change = kernel_change(first, second)
    if change is None:
        asked = session.may_preview and (first.preview is None or second.preview is None)
        return [[], [(f"kernels: the builder is being asked, {key('diff')} again shows them", "dim")]] if asked else []
    return [[], [(change.said, "strong")], *([(f" {line[:2]}", "key"), (line[2:], "")] for line in change.lines(_MOST))]
