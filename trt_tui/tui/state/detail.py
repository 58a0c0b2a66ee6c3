"""The detail pane: why the row under the cursor loses, what to try, what the engine made of it, who set it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from trt_tui.core.calibration.ranges import for_codes
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.codes import CODES, FP8, CodeType
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.keeping import RULE_TEXTS
from trt_tui.core.moves.offers import made
from trt_tui.core.network.hierarchy import FoldedRow, GroupRow, LayerRow, Scope
from trt_tui.core.network.layers import Group
from trt_tui.core.network.refused import way_out
from trt_tui.core.network.tree_text import shape_text
from trt_tui.core.network.troubles import troubles_in
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.jobs.events import FREE_KEY, WayOut
from trt_tui.session.session import Session
from trt_tui.tui.keys import now
from trt_tui.tui.known import headline, met
from trt_tui.tui.spans import Line, clip, decibel, fitted, shorten, width_of, wrap
from trt_tui.tui.state import built, previewed
from trt_tui.tui.state.depth import depth_lines
from trt_tui.tui.state.figures import Figures, Measure, engine_errors
from trt_tui.tui.state.tree import Tail, TreeModel, VisibleRow
from trt_tui.tui.state.values import group_channels, histogram_lines
from trt_tui.words import (
    NOTHING,
    RUN_TITLES,
    SIMULATED,
    decibels,
    milliseconds,
    near,
    number,
    percent,
    plural,
    with_unit,
)

_FP8_HALF_LEAST = 2.0**-10
"""In scales: half of E4M3's least magnitude above 0 (2^-9, subnormal); what lies below rounds to 0."""

LEAST_SHARE = 0.002
"""Smaller shares of values are not mentioned."""


def bits_used(stats: TensorStats, amax: float | None = None) -> float | None:
    """How many of 8 bits a tensor's values use under a range: 8 − log2(amax / (√3·rms)).

    A uniform distribution between -amax and amax has an rms of amax/√3 and uses all 8.
    """
    amax = stats.amax if amax is None else amax
    if amax <= 0 or stats.rms <= 0:
        return None
    return max(0.0, min(8.0, 8.0 - math.log2(amax / (math.sqrt(3) * stats.rms))))


def beyond_fp8(stats: TensorStats, amax: float) -> tuple[float, float]:
    """Approximate shares of a tensor's nonzero values that FP8 rounds to 0, and clips, with one scale of amax/448."""
    scale = amax / FP8.greatest
    return stats.below(scale * _FP8_HALF_LEAST), 1 - stats.below(amax) if amax < stats.amax else 0.0


def worst_input(group: Group, stats: Mapping[str, TensorStats], fp8: bool = False,
                in_use: Callable[[str, TensorStats], float] = lambda tensor, one: one.amax
                ) -> tuple[str, TensorStats] | None:
    """The input of a group that reads codes whose range leaves the fewest bits, in FP8 the fewest values; the first
    tensor known where none is read so.

    Args:
        in_use: The range (amax) that a tensor has.
    """
    found = []
    for tensor in dict.fromkeys(site.tensor for site in group.activations()):
        if tensor in stats and (bits := bits_used(stats[tensor])) is not None:
            amax = in_use(tensor, stats[tensor])
            bits = bits_used(stats[tensor], amax) or 0.0
            found.append((-sum(beyond_fp8(stats[tensor], amax)) if fp8 else bits, tensor))
    if found:
        tensor = min(found)[1]
        return tensor, stats[tensor]
    return next(((tensor, stats[tensor]) for tensor in (*group.inputs, group.tail) if tensor in stats), None)


def range_sentence(stats: TensorStats, amax: float | None = None, whose: str = "") -> str:
    """Which channels set the range, and what it leaves: the reason why INT8 loses.

    Args:
        amax: The range in use, where it is not the largest magnitude.
        whose: Where that is from: a method, "user", "file".
    """
    bits = bits_used(stats, amax)
    if amax is not None and not math.isclose(amax, stats.amax, rel_tol=0.01):
        left = f": {bits:.1f} of 8 bits" if bits is not None else ""
        clipped = percent(1 - stats.below(amax)) if amax < stats.amax else "·"
        return (f"{f'{whose} ' if whose else ''}range {number(amax)} of amax {number(stats.amax)}, "
                f"rms {number(stats.rms)}{left}" + (f"; {clipped} of values clipped" if clipped != "·" else ""))
    figures_ = f"amax {number(stats.amax)}, rms {number(stats.rms)}"
    tail = f"{figures_}: {bits:.1f} of 8 bits" if bits is not None else figures_
    top = stats.top_channels
    if top is not None and 0 < len(top.indices) <= top.channels // 4:
        sets = "sets" if len(top.indices) == 1 else "set"
        return f"{len(top.indices)} of {top.channels} input channels {sets} the range: {tail}"
    if stats.p9999 > 0 and stats.amax > 4 * stats.p9999:
        return f"outliers set the range (99.99% lie below {number(stats.p9999)}): {tail}"
    return f"range: {tail}"


def fp8_sentence(stats: TensorStats, amax: float) -> str:
    """What FP8 loses of a tensor by its one scale: relative steps are the same at every magnitude, so that only what
    lies outside of them counts."""
    zeroed, clipped = beyond_fp8(stats, amax)
    lost = [f"about {percent(zeroed)} of values round to 0" if zeroed >= LEAST_SHARE else "",
            f"{percent(clipped)} are clipped" if clipped >= LEAST_SHARE else ""]
    said = " and ".join(filter(None, lost)) or "none clipped, hardly any round to 0"
    return f"FP8 scale by amax {number(amax)}: {said}"


def fp16_sentence(stats: Mapping[str, TensorStats]) -> str:
    """FP16 overflow or underflow in the tensors of a group, "" where there is none worth mentioning."""
    for name, one in stats.items():
        if one.over_fp16:
            return f"overflow: max {number(one.amax)} exceeds FP16's {FP16_MAX:.0f} in {name}"
    for name, one in stats.items():
        if one.share_below_fp16_subnormal > 0.01:
            return f"underflow: {percent(one.share_below_fp16_subnormal)} of {name} is below FP16's smallest value"
    for name, one in stats.items():
        if one.share_subnormal > 0.1:
            return f"{percent(one.share_subnormal)} of {name} is subnormal in FP16"
    return ""


def reasons(session: Session, found: Figures, group: Group) -> list[str]:
    """Why a group loses, the most important reason first."""
    lines: list[str] = []
    if group.name == found.parts and (parts := session.parting(found.run)) is not None:
        lines.append(f"{parts.said}; a fusion barrier (f) may keep it apart")
    errors = session.measured(found.run).groups.get(group.name)
    stats = session.results.statistics.get(group.name, {})
    if errors is not None:
        at = errors.accumulated
        if at is not None and at.bad:
            counts = [f"{count} {word}" for count, word in ((at.nan, "NaN"), (at.inf, "Inf")) if count]
            lines.append(f"{' and '.join(counts)} at its output in {RUN_TITLES[found.run]}")
        if errors.warning:
            lines.append(errors.warning)
    half = fp16_sentence(stats)
    asked = found.config.precision_of(group)
    in_fp16 = asked.values in (Precision.FP16, Precision.INT8) or (
        asked is Precision.FILE and group.given is not None and group.given.floats is Precision.FP16)
    if half and in_fp16 and not any("FP16" in line for line in lines):
        lines.append(half)
    codes = _codes_read(found, group)
    worst = worst_input(group, stats, codes is Precision.FP8, _in_use(session, found, codes))
    if codes in group.allowed and worst is not None:
        amax = range_in_use(session, found.config, *worst, CODES[codes])
        lines.append(fp8_sentence(worst[1], amax) if codes is Precision.FP8 else
                     range_sentence(worst[1], amax, _whose(session, found.config, worst[0])))
    if session.outline is not None:
        lines += troubles_in(session.outline.troubles, group, group.stands_for(asked) in CODES)
    lines += _remarks(session, found, group)
    if asked is Precision.FILE and group.given is not None:
        lines += [f"TensorRT refuses {what} at {name}: {way_out(what)}" for name, what in group.given.refused]
    for precision in dict.fromkeys((Precision.FP16, found.lowest)):
        if precision in group.refusals:
            lines.append(f"cannot run {precision.label}: {group.refusals[precision]}")
            break
    return lines


def _remarks(session: Session, found: Figures, group: Group) -> list[str]:
    """What parser and builder warned of, with who did: of the preview and of the engine of this very config."""
    known = session.measured(found.run)
    told: list[tuple[str, str]] = []
    if known.preview is not None:
        told += [(text, f"preview, {known.preview.name}") for text in known.preview.remarks.get(group.name, ())]
    if known.engine is not None:
        told += [(text, f"build, {known.engine.backend}") for text in known.engine.remarks.get(group.name, ())]
    return [f"{text} ({source})" for text, source in told]


def _codes_read(found: Figures, group: Group) -> Precision | None:
    """The codes that a group reads, or would if it were lowered; None where its weights alone are codes."""
    asked = group.stands_for(found.config.precision_of(group))
    precision = asked if asked in CODES else found.codes
    return precision if CODES[precision].activations else None


def range_in_use(session: Session, config: PrecisionConfig, tensor: str, stats: TensorStats, code: CodeType) -> float:
    """The range (amax) that a tensor has as codes: the file's own, a chosen one, the calibrated one."""
    if _is_the_files(session, config, tensor):
        return session.opened.outline.quantized_ranges[tensor]
    if (choice := config.ranges.get(tensor)) is not None:
        return choice.amax
    known = for_codes(session.calibration.by_codes, code) if session.calibration is not None else {}
    return known.get(tensor, stats.amax)


def _in_use(session: Session, found: Figures, codes: Precision | None) -> Callable[[str, TensorStats], float]:
    """`range_in_use` of codes, the largest magnitude where a row reads none."""
    def in_use(tensor: str, stats: TensorStats) -> float:
        return range_in_use(session, found.config, tensor, stats, CODES[codes]) if codes is not None else stats.amax

    return in_use


def _is_the_files(session: Session, config: PrecisionConfig, tensor: str) -> bool:
    return config.quantized is Precision.FILE and session.outline is not None and (
        tensor in session.outline.quantized_ranges)


def _whose(session: Session, config: PrecisionConfig, tensor: str) -> str:
    """Where the range of a tensor is from: "the file's", the method that was chosen for it, or that of calibration."""
    if _is_the_files(session, config, tensor):
        return "the file's"
    if (choice := config.ranges.get(tensor)) is not None:
        return "own" if choice.method == "user" else choice.method
    return session.calibration.method if session.calibration is not None else ""


def option_spans(session: Session, group: Group, width: int) -> list[Line]:
    """The ways out of a group, each with its what-if result; one line each."""
    lines = []
    for option in session.results.ways_out.get((group.name, session.config), ()):
        text, style = headline(session, option.verdict)
        name = fitted(option.label.removesuffix(" range"), max(8, min(18, width - 15)))
        reached: Line = [("  meets the target", "good")] if met(session, option.verdict) else []
        line: Line = [(f"{now(option.key):<6}", "key"), (f"{name} ", ""), (f"{text:>8}", "good" if reached else style)]
        line += reached if width_of(line + reached) <= width else []
        lines.append(clip(line, width))
    return lines


def detail_title(model: TreeModel, line: VisibleRow | None) -> str:
    """The title of the detail pane."""
    if line is None:
        return "Detail"
    row = line.row
    if row is None:
        layer = model.outline.layer_by_name[line.node]
        return f"{layer.name} ─ {layer.op_type}"
    if isinstance(row, GroupRow):
        return f"{model.titles[row.group.name]} ─ {row.group.operator}, {plural(len(row.group.layers), 'node')}"
    if isinstance(row, Scope):
        return f"{row.path} ─ {plural(len(row.groups), 'fused layer')}"
    return row.label


def detail_lines(session: Session, found: Figures, line: VisibleRow | None, width: int, height: int) -> list[Line]:
    """The detail pane. Short panes (under 8 lines) get why, try and set by in a line each."""
    if line is None:
        return []
    row, model = line.row, found.model
    if isinstance(row, Scope):
        return _scope_detail(session, found, row, width, height)
    if isinstance(row, LayerRow):
        return [_labelled("why", row.refused or "it has no precision to choose", width)]
    if isinstance(row, Tail):
        return [_labelled("why", "each has less than .2 % of the judged error; enter lists them", width)]
    if isinstance(row, FoldedRow):
        return [_labelled("why", "constants, shapes, integers, casts and Q/DQ make no difference to precision", width)]
    if row is None:
        layer = model.outline.layer_by_name[line.node]
        group = model.outline.group_by_layer.get(line.node)
        lines = [_labelled("in", ", ".join(name for name in layer.inputs if name) or "nothing", width),
                 _labelled("out", ", ".join(name for name in layer.outputs if name) or "nothing", width)]
        if group is not None:
            lines.append(_labelled("part", f"of {group.name}: the group takes one precision", width))
        elif layer.note:
            lines.append(_labelled("why", layer.note, width))
        return lines
    group = row.group
    if height < 8:
        return _short_detail(session, found, group, width)[:height]
    return _long_detail(session, found, group, width)


def pane_lines(session: Session, found: Figures, line: VisibleRow | None, group: Group | None, width: int,
               height: int) -> list[Line]:
    """`detail_lines`, and where there is room pictures: what a group reads, and where it or a scope lies."""
    lines = detail_lines(session, found, line, width, height)
    if height < 8 or group is None:
        row = line.row if line is not None and height >= 8 else None
        depth = depth_lines(found, row.groups, width) if isinstance(row, Scope) else []
        return [*lines, [], *depth] if depth else lines
    rows = 4 if height >= len(lines) + 9 else 2
    for plot in (values_lines(session, found, group, width, rows), group_channels(session, group, width),
                 depth_lines(found, [group.name], width)):
        if plot and len(lines) + len(plot) + 1 <= height:
            lines = [*lines, [], *plot]
    return lines


def values_lines(session: Session, found: Figures, group: Group, width: int, rows: int) -> list[Line]:
    """The histogram of what a group reads worst, with the range that it has, if it is known."""
    codes = _codes_read(found, group)
    stats = session.results.statistics.get(group.name, {})
    worst = worst_input(group, stats, codes is Precision.FP8, _in_use(session, found, codes))
    if worst is None:
        return []
    ranged = codes is not None and worst[0] in {site.tensor for site in group.activations()}
    amax = range_in_use(session, found.config, *worst, CODES[codes]) if ranged and codes is not None else None
    return histogram_lines(*worst, width, rows, amax)


def _labelled(label: str, text: str, width: int, style: str = "") -> Line:
    return clip([(f" {label:<6}", "dim"), (text, style)], width)


def _wrapped(label: str, text: str, width: int, style: str = "") -> list[Line]:
    parts = wrap(text, max(10, width - 10))
    return [[(f" {label if index == 0 else '':<8} ", "dim"), (part, style)] for index, part in enumerate(parts)]


def _set_by(session: Session, config: PrecisionConfig, group: Group) -> str:
    choice = config.groups.get(group.name)
    default = group.label(config.default_for(group))
    if (kept := config.of(Keep).get(group.name)) is not None:
        return f"{kept.note} ({RULE_TEXTS.get(kept.rule, 'by name')}); default {default}"
    if choice is None:
        return f"default {default}"
    who = {"user": "you", "file": "the file"}.get(choice.reason, choice.reason)
    at = session.changed_at.get(group.name)
    when = time.strftime(", %H:%M", time.localtime(at)) if at is not None else ""
    why = session.why.get(group.name, "") if choice.reason.startswith("search:") else ""
    return f"{group.label(choice.precision)} by {who}{when}{': ' if why else ''}{why}; default {default}"


def other_moves(session: Session, config: PrecisionConfig, group: Group) -> str:
    """What the pane says of the moves on a group beside its precision, "" where there are none."""
    moves = [(target, move) for target, move in config.moves_on(group) if not isinstance(move, (Choice, Keep))]
    on = {(move.kind, target) for target, move in moves}
    if (outline := session.outline or session.preview) is not None:
        moves += [(target, config.moves[kind.kind, target]) for kind, target in made(outline, config, group)
                  if (kind.kind, target) not in on]
    notes = "; ".join(dict.fromkeys(move.note for _, move in moves))
    who = dict.fromkeys(session.why[target] for target, _ in moves if target in session.why)
    return f"; {notes}{', set by ' if who else ''}{', '.join(who)}" if moves else ""


def _best_of_each(session: Session, options: Sequence[WayOut]) -> list[WayOut]:
    """The options with only the best of the other ranges, and of what is free."""
    def margin(option: WayOut) -> float:
        value = session.target.margin(option.verdict) if session.target is not None else None
        energy = option.verdict.energy
        return value if value is not None else -math.inf if energy is None else -energy

    several = ("r", FREE_KEY)
    best = [max((option for option in options if option.key == key), key=margin, default=None) for key in several]
    return [option for option in options if option.key not in several or any(option is one for one in best)]


def _short_detail(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    known = reasons(session, found, group)
    lines: list[Line] = []
    if known:
        lines.append(_labelled("why", known[0], width))
    elif session.busy or group.name not in session.results.statistics:
        lines.append(_labelled("why", "measuring …" if session.data is not None else NOTHING, width, "dim"))
    else:
        lines.append(_labelled("why", "nothing stands out", width, "dim"))
    options = _best_of_each(session, session.results.ways_out.get((group.name, session.config), ()))
    if options:
        line: Line = [(" try   ", "dim")]
        for index, option in enumerate(options):
            text, style = headline(session, option.verdict)
            line += [(" · " if index else "", "dim"), (f"{now(option.key)}: ", "key"), (f"{option.label} ", ""),
                     (text, "good" if met(session, option.verdict) else style)]
        lines.append(clip(line, width))
    elif len(known) > 1:
        lines.append(_labelled("also", known[1], width))
    if found.preview is not None and (told := previewed.sentences(found.preview, group, found.asked(group),
                                                                  found.model.titles)):
        return [*lines, _labelled("made", "; ".join((*told[1:], told[0])), width)]
    shown = built.shown_engine(session, found.run)
    if shown is not None and (sentences := built.group_sentences(shown, group, found.asked(group))):
        label = built.DIFFERS if built.is_marked(shown, group, found.asked(group)) else "made"
        return [*lines, _labelled(label, "; ".join(sentences), width, "stale" if shown.stale else "")]
    said = _set_by(session, found.config, group) + other_moves(session, found.config, group)
    lines.append(_labelled("set", said, width, "dim"))
    return lines


def _long_detail(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    lines: list[Line] = []
    errors = session.measured(found.run).groups.get(group.name)
    if errors is not None and (errors.isolated is not None or errors.accumulated is not None):
        isolated, accumulated = decibel(errors.isolated), decibel(errors.accumulated)
        alone: Line = [(" error    ", "dim"), ("isolated ", "dim"), isolated]
        whole: Line = [("accumulated ", "dim"), accumulated, (f" dB in {found.of}" if width > 60 else " dB", "dim")]
        lines += [clip([*alone, (" · ", "dim"), *whole], width)] if width > 48 else [alone, [(" " * 10, ""), *whole]]
    if (inside := engine_errors(session, found.run).get(group.name)) is not None:
        lines.append(clip([(" engine   ", "dim"), ("accumulated ", "dim"), decibel(inside, False), (" dB", "dim")],
                          width))
    if errors is not None and errors.fp16_largest:
        room = f"headroom ×{number(FP16_MAX / errors.fp16_largest, 2)}: {errors.fp16_at} reaches"
        lines += _wrapped("fp16", f"{room} {number(errors.fp16_largest, 2)}", width, "dim")
    share = session.measured(found.run).shares.get(group.name)
    if found.instead(group):
        lines.append([(" share    ", "dim"), (f"{found.instead(group)}: it has none", "dim")])
    elif share is not None:
        every = session.data.whatif if session.data is not None else share.samples
        line: Line = [(" share    ", "dim"), (share.unknown and f"unknown: {share.unknown}" or
                                              near(share.owns, share.margin, SIMULATED), "")]
        if share.samples < every:
            line.append((f" on {share.samples} of {every} samples", "dim"))
        if share.impact_db is not None:
            line += [(" · only it lowered ", "dim"), (with_unit(decibels(share.impact_db)), "")]
        lines.append(clip(line, width))
    lines += _cumulative(session, found, group, width)
    known = reasons(session, found, group)
    for index, text in enumerate(known):
        lines += _wrapped("why" if index == 0 else "", text, width)
    if not known:
        empty = "nothing stands out" if group.name in session.results.statistics else "measuring …"
        lines += _wrapped("why", empty if session.data is not None else NOTHING, width, "dim")
    margin = 10 if width > 48 else 5
    for index, option in enumerate(option_spans(session, group, max(10, width - margin))):
        lines.append([((" try" if index == 0 else "").ljust(margin), "dim"), *option])
    lines += _engine_lines(session, found, group, width)
    said = _set_by(session, found.config, group) + other_moves(session, found.config, group)
    lines += _wrapped("set", said, width)
    shape = found.model.outline.shapes.get(group.tail)
    if shape is not None:
        lines += _wrapped("output", shape_text(shape), width, "dim")
    return lines


def _cumulative(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    """What the cumulative FP32 sweep told of the worst rows down to this one, raised together."""
    measured = session.measured(found.run)
    if found.run != "config" or group.name not in measured.raised_order:
        return []
    place = measured.raised_order.index(group.name)
    if place >= len(measured.raised):
        return []
    text, style = headline(session, measured.raised[place])
    line: Line = [(" sweep    ", "dim"), (f"worst {place + 1} in FP32: " if place else "in FP32: ", "dim"),
                  (text, style)]
    if met(session, measured.raised[place]):
        line[-1] = (text, "good")
        line += [(" meets it", "good")] if width_of(line) + 9 <= width else []
    return [clip(line, width)]


def _engine_lines(session: Session, found: Figures, group: Group, width: int) -> list[Line]:
    """What the engine made of a group: precision and time, whether TensorRT tells more, the names of its layers."""
    if found.preview is not None:
        told = previewed.sentences(found.preview, group, found.asked(group), found.model.titles)
        labelled = zip(("engine", *("" for _ in told[1:])), told, strict=False)
        return [line for label, text in labelled for line in _wrapped(label, text, width)]
    shown = built.shown_engine(session, found.run)
    if shown is None:
        why = previewed.refusal(session)
        return _wrapped("engine", why, width, "dim") if why else []
    style = "stale" if shown.stale else ""
    mark = f"{built.DIFFERS} " if built.is_marked(shown, group, found.asked(group)) else ""
    lines: list[Line] = []
    for index, text in enumerate(built.group_sentences(shown, group, found.asked(group))):
        lines += _wrapped("engine" if index == 0 else "", (mark if index == 0 else "") + text, width, style)
    made = shown.result.made.get(group.name)
    for name in made.layers[:2] if made is not None else ():
        lines.append([(" " * 10, ""), (shorten(name, max(10, width - 10)), "dim")])
    return lines


def _scope_detail(session: Session, found: Figures, scope: Scope, width: int, height: int) -> list[Line]:
    by_name = found.model.outline.group_by_name
    groups = [by_name[name] for name in scope.groups]
    counts: dict[str, int] = {}
    for group in groups:
        label = group.label(found.config.precision_of(group))
        counts[label] = counts.get(label, 0) + 1
    asked = " · ".join(f"{count} {label}" for label, count in sorted(counts.items()))
    said = [("asked", asked, "")]
    shown = built.shown_engine(session, found.run)
    if found.preview is not None and found.preview.refused is None:
        said.append(("made", previewed.scope_sentence(found.preview, groups, found.config), ""))
    elif shown is not None and (text := built.scope_text(shown, groups, found.scope_differs.get(scope.path, 0))):
        time = found.scope_times.get(scope.path)
        said.append(("made", text + (f" · {milliseconds(time)}" if time is not None else ""),
                     "stale" if shown.stale else ""))
    told = {name: found.value_text(found.values[name]) for name in scope.groups if name in found.values}
    ranked = sorted((name for name in told if told[name] != "·"), key=lambda name: -found.weights.get(name, 0.0))
    if ranked:
        said.append(("worst", " · ".join(f"{found.model.titles[name]} {told[name]}"
                                         for name in ranked[:1 if height < 8 else 3]), ""))
    worse = sum(found.values.get(name, 0.0) < 0 for name in scope.groups) if found.measure is Measure.OWNS else 0
    if worse and (value := found.scope_values.get(scope.path)) is not None:
        left = f"{worse} left out: raising {'it' if worse == 1 else 'one'} alone makes the error larger"
        said.append(("share", f"{found.value_text(value)} added up, {left}", "dim"))
    fixed = sum(found.lowest not in group.allowed for group in groups)
    if fixed:
        said.append(("fixed", f"{fixed} of {len(groups)} cannot run {found.lowest.label}", "dim"))
    tell = _wrapped if height >= 8 else lambda *told: [_labelled(*told)]
    return [line for label, text, style in said for line in tell(label, text, width, style)][:height]
