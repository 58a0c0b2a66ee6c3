"""The page of an engine: values as built, recommended checks, and layers with their times."""

from collections.abc import Sequence

from trt_tui.core.engines.fallback_ladder import attempt_lines
from trt_tui.core.engines.group_implementations import has_unrequested_precision
from trt_tui.core.engines.inspector import COMPUTE, ENGINE_PRECISION_TITLES, QDQ, REFORMAT, EngineReport
from trt_tui.core.measure.engine_agreement import (
    engine_errors_text,
    engine_variation_notes,
    fp32_engine_fault_text,
    sqnr_gap_of_engine_db,
    suggest_engine_checks,
)
from trt_tui.core.measure.results import Accuracy
from trt_tui.formatting import (
    NOT_MEASURED,
    add_decibel_unit,
    byte_size_text,
    counted_noun_text,
    engine_gap_text,
    milliseconds_text,
    number_text,
    percent_text,
)
from trt_tui.session.session import Session
from trt_tui.tui.config_status import config_name, target_value_span
from trt_tui.tui.spans import Line, labelled_lines, pad_or_shorten, worst_sqnr_span
from trt_tui.tui.state.engine_texts import (
    CANNOT_RUN_TEXT,
    ShownEngine,
    build_origin_text,
    find_shown_engine,
    fp32_engine_texts,
)
from trt_tui.tui.state.text_plots import bar_text

_LABEL_CELLS = 12
_MAX_SLOWEST_LAYERS = 8
_RIGHT_CELLS = 32
"""The cells to the right of a layer name: precision, milliseconds, share of the time."""


def engine_page_title(session: Session) -> str:
    shown_engine = find_shown_engine(session)
    if shown_engine is None:
        return "The FP32 engine"
    behind_text = (f", {counted_noun_text(shown_engine.edits_behind, 'change')} before {config_name(session)}"
                   if shown_engine.is_stale else "")
    return f"The engine of {shown_engine.name}{behind_text}"


def engine_page_lines(session: Session, width: int) -> list[Line]:
    """Returns the lines of the engine page for the current config: values, recommended checks, layers."""
    shown_engine, fp32_engine = find_shown_engine(session), session.results.fp32_engine
    entries = _list_engine_values(session, shown_engine) if shown_engine is not None else []
    if fp32_engine is not None:
        conclusion_text, accuracy = fp32_engine_texts(fp32_engine)[0], fp32_engine.accuracy
        has_fault = bool(fp32_engine_fault_text(fp32_engine))
        if accuracy:
            sqnr_text = _worst_sqnr_text(accuracy, False)
            conclusion_text = (f"{sqnr_text} against ONNX Runtime: {conclusion_text}" if has_fault else
                               f"{conclusion_text}: {sqnr_text}")
        entries.append(("FP32 engine", conclusion_text, "warn" if has_fault else ""))
    lines = [line for label, texts, style in entries
             for line in labelled_lines(label, texts, width, style, _LABEL_CELLS)]
    if shown_engine is None:
        return lines
    lines += _engine_check_lines(session, shown_engine, width)
    engine_report = shown_engine.result.engine_report
    if engine_report is not None:
        lines += _precision_share_lines(engine_report)
        lines += _other_precision_group_lines(session, shown_engine, width)
        if slowest := _slowest_layer_lines(engine_report, width):
            lines += [[], *slowest]
    return lines


def _list_engine_values(session: Session, shown_engine: ShownEngine) -> list[tuple[str, str | Sequence[str], str]]:
    """Returns the values of an engine: label, texts and style. A value that does not exist has no texts."""
    result, simulated_accuracy = shown_engine.result, _find_simulated_accuracy(session, shown_engine)
    device_text = f" on {result.device_name}" if result.device_name else ""
    size_text = f", {byte_size_text(result.engine_bytes)}" if result.engine_bytes is not None else ""
    attempts = attempt_lines(result.attempts, result.other_precisions)
    entries: list[tuple[str, str | Sequence[str], str]] = [
        ("builder", result.builder_name + device_text, ""), ("build", build_origin_text(result) + size_text, ""),
        ("tried", [] if result.is_built_as_requested else list(attempts), "warn")]
    if result.accuracy is None:
        return [*entries, ("run", result.measurement_note or CANNOT_RUN_TEXT, "")]
    text = f"{_worst_sqnr_text(result.accuracy, False)} as built"
    if simulated_accuracy is not None:
        text += f", {_worst_sqnr_text(simulated_accuracy, True)} simulated"
    if session.target is not None and session.target.kind != "sqnr":
        built_text, simulated_text = (target_value_span(session, accuracy, is_simulated)[0] for accuracy, is_simulated
                                      in ((result.accuracy, False), (simulated_accuracy, True)))
        text += f"; {built_text} as built, {simulated_text} simulated"
    memory_text = (f"{byte_size_text(result.device_memory_bytes)} on the device, beside weights and tensors"
                   if result.device_memory_bytes else "")
    errors_text = (engine_errors_text(result.engine_errors, len(session.opened_network.outline.groups))
                   if result.engine_errors is not None else "")
    return [
        *entries, ("latency", _latency_text(result.latency_ms, "median "), ""),
        ("", _latency_text(result.cuda_graph_ms, end=" as one CUDA graph, as trtexec 11 measures"), ""),
        ("profiles", list(result.profile_latency_lines), ""), ("memory", memory_text, ""), ("output", text, ""),
        *((f"at {name}", _worst_sqnr_text(accuracy, False), "") for name, accuracy in result.shape_accuracies.items()),
        *(("warning", warning, "warn") for warning in result.builder_warnings),
        *(("builds", remark, "warn" if result.unequal_outputs else "") for remark in engine_variation_notes(result)),
        ("layers", errors_text, ""), ("note", result.measurement_note, "dim")]


def _latency_text(latency_ms: tuple[float, float, float] | None, start: str = "", end: str = "") -> str:
    """Returns the median of a latency with its minimum and maximum; "" if it was not measured."""
    if latency_ms is None:
        return ""
    median, minimum, maximum = latency_ms
    return f"{start}{milliseconds_text(median)}, {number_text(minimum)} to {number_text(maximum)}{end}"


def _find_simulated_accuracy(session: Session, shown_engine: ShownEngine) -> Accuracy | None:
    """Returns the simulated accuracy of the config that an engine was built from.

    If the fallback ladder changed the config, this is the accuracy of the changed config.
    """
    simulated_accuracy = session.results.get_results_or_empty(
        shown_engine.config).accuracy if shown_engine.is_stale else session.get_run_results("config").accuracy
    return shown_engine.result.select_comparable_simulation(simulated_accuracy)


def _worst_sqnr_text(accuracy: Accuracy, is_simulated: bool) -> str:
    return add_decibel_unit(worst_sqnr_span(accuracy, is_simulated)[0])


def _engine_check_lines(session: Session, shown_engine: ShownEngine, width: int) -> list[Line]:
    simulated_accuracy = _find_simulated_accuracy(session, shown_engine)
    if session.outline is None:
        return []
    checks = suggest_engine_checks(session.outline, shown_engine.config, simulated_accuracy, shown_engine.result,
                                   session.results.fp32_engine,
                                   None if shown_engine.is_stale else session.find_engine_divergence("config"))
    if not checks:
        return []
    gap = sqnr_gap_of_engine_db(simulated_accuracy, shown_engine.result.accuracy)
    gap_description = engine_gap_text(gap)
    lines: list[Line] = [[], [(f"What to check: it is {gap_description}", "warn")]]
    return [*lines, *(line for text in checks for line in labelled_lines("  · ", text, width, label_width=4))]


def _precision_share_lines(engine_report: EngineReport) -> list[Line]:
    lines: list[Line] = [[], [(f"{'Computed in':<16}{'layers':>8}{'time':>8}", "strong")]]
    for word, (count, time) in engine_report.precision_shares().items():
        style = "dim" if word in ("?", REFORMAT, QDQ) else ""
        lines.append([(f"  {ENGINE_PRECISION_TITLES.get(word, word):<14}", style), (f"{count:>8}", ""),
                      (f"{NOT_MEASURED if time is None else percent_text(time):>8}", "")])
    return lines


def _other_precision_group_lines(session: Session, shown_engine: ShownEngine, width: int) -> list[Line]:
    """Returns the groups that run in another precision than requested."""
    config, implementations = shown_engine.config, shown_engine.result.implementations
    groups = session.outline.groups if session.outline is not None else ()
    changed = [(group, implementation, implementation.precision)
               for group in groups
               if has_unrequested_precision(group, config, implementations) and (
                   implementation := implementations[group.name]).precision is not None]
    if not changed:
        return [[], [("All groups that TensorRT lists run as requested.", "dim")]]
    lines: list[Line] = [[],
                         [("In another precision than requested: "
                           f"{counted_noun_text(len(changed), 'group')}", "strong")]]
    room = max(10, width - _RIGHT_CELLS)
    for group, implementation, precision in changed:
        time = milliseconds_text(implementation.latency_ms) if implementation.latency_ms is not None else ""
        lines.append([("  " + pad_or_shorten(group.name, room), ""),
                      (f"{f'{group.precision_label(config.precision_of(group))} → {precision.label}':>13}", ""),
                      (f"{time:>11}", "dim")])
    return lines


def _slowest_layer_lines(engine_report: EngineReport, width: int) -> list[Line]:
    """Returns the slowest engine layers with their times and, if there is room, bars; an empty list without times."""
    timed = sorted(((layer.ms, layer) for layer in engine_report.layers if layer.ms), key=lambda entry: -entry[0])
    if not timed:
        return []
    total = sum(ms for ms, _ in timed)
    bar = max(0, min(20, width - _RIGHT_CELLS - 24))
    room = max(10, width - _RIGHT_CELLS - bar)
    lines: list[Line] = [[("Slowest layers", "strong")]]
    for ms, layer in timed[:_MAX_SLOWEST_LAYERS]:
        precision = layer.precision.label if layer.precision is not None else ""
        word = precision or "?" if layer.kind == COMPUTE else layer.kind
        lines.append([("  " + pad_or_shorten(layer.name, room - 2), ""), (f"{word:>13}", "dim"),
                      (f"{milliseconds_text(ms):>11}", ""), (f"{percent_text(ms / total):>6}  ", "dim"),
                      (bar_text(ms / timed[0][0], bar), "plot")])
    if len(timed) > _MAX_SLOWEST_LAYERS:
        more_text = counted_noun_text(len(timed) - _MAX_SLOWEST_LAYERS, "more layer")
        lines.append([(f"  {more_text}: {milliseconds_text(sum(ms for ms, _ in timed[_MAX_SLOWEST_LAYERS:]))}", "dim")])
    return lines
