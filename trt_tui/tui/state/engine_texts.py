"""Texts about the engine of a config and its preview: the builder, fusion groups, faults; the page of the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trt_tui.core.engines.group_implementations import (
    BREAKS_MHA,
    NO_EFFECT,
    STANDALONE_QDQ,
    GroupImplementation,
    Preview,
    has_unrequested_precision,
    is_unrequested_precision,
)
from trt_tui.core.exporters.preview_report import adjacent_layers_text, kernel_sharing_text
from trt_tui.core.measure.engine_agreement import (
    UNEXPLAINED_GAP_DB,
    engine_sqnr_gap_db,
    find_unused_quantization_of_group,
    fp32_engine_fault_text,
    suggest_engine_checks,
)
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.report.document import Block
from trt_tui.core.report.engine_blocks import (
    build_attempt_blocks,
    engine_check_lines,
    engine_error_blocks,
    engine_remark_lines,
    fp32_engine_fault_lines,
    precision_share_table,
    slowest_layer_table,
    unrequested_group_blocks,
)
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.formatting import (
    EXPORTED_NETWORK,
    add_decibel_unit,
    builder_title,
    counted_noun_text,
    duration_text,
    milliseconds_text,
    percent_text,
    simulation_engine_gap_text,
)
from trt_tui.jobs.events import BuilderSummary
from trt_tui.session.comparison_report import FP32_ENGINE_TITLE, ReportedRun, accuracy_table, list_engine_runs
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line
from trt_tui.tui.state.config_status import config_name
from trt_tui.tui.state.marks import OTHER_PRECISION_MARK
from trt_tui.tui.table import block_lines

CANNOT_RUN_TEXT = "built, cannot run here"


@dataclass(frozen=True)
class ShownEngine:
    """The engine that the screen shows for a run, which can be the engine of an earlier config.

    Attributes:
        config: The config that the engine was built from.
        name: The name of that config.
        is_stale: True if the engine was built from another config than that of the run.
    """

    result: EngineResult
    config: PrecisionConfig
    name: str
    is_stale: bool = False


def find_shown_engine(session: Session, run: str = "config") -> ShownEngine | None:
    """Returns the engine of a run's config. If the current config has none, returns the engine that was built last.

    None if there is no such engine.
    """
    config, result = session.get_run_config(run), session.get_run_results(run).engine_result
    if result is not None:
        return ShownEngine(result, config, config_name(session, config))
    built_config = session.last_built_config if run == "config" else None
    result = session.results.get_results_or_empty(built_config).engine_result if built_config is not None else None
    if built_config is None or result is None:
        return None
    return ShownEngine(result, built_config, config_name(session, built_config), is_stale=True)


# -- the builder ----------------------------------------------------------------------------------------------------


def builder_texts(builder: BuilderSummary) -> list[str]:
    """Returns descriptions of the builder and its GPU, from the longest to the shortest."""
    title = builder_title(builder.name, ".".join(builder.version.split(".")[:2]))
    if not builder.can_run:
        return [f"{title}, builds only"]
    gpu = builder.device.removeprefix("NVIDIA ").removeprefix("GeForce ")
    return [f"{gpu} {title}", title] if gpu else [title]


def built_column_title(session: Session, is_short: bool = False) -> str:
    """Returns the title of the column of built values: the builder, or the exported network if there is no builder."""
    builder = session.builder
    if builder is None:
        return "exported" if is_short else EXPORTED_NETWORK
    major = ".".join(builder.version.split(".")[:2])
    return f"{'RTX' if builder.name == 'tensorrt-rtx' else 'TRT'} {major}"


# -- the verdict ----------------------------------------------------------------------------------------------------


def quantized_time_share_text(engine_result: EngineResult, quantized_type: Precision) -> str:
    """Returns the share of the engine's time in layers of a quantized type, such as INT8; "" if it was not measured."""
    if engine_result.engine_report is None:
        return ""
    shares = engine_result.engine_report.precision_shares()
    if all(time is None for _, time in shares.values()):
        return ""
    return percent_text(shares.get(quantized_type.label, (0, 0.0))[1] or 0.0)


def fp32_engine_texts(fp32_engine: EngineResult) -> list[str]:
    """Returns the conclusion from the FP32 engine about the graph, from the longest to the shortest text.

    If the FP32 engine differs from the reference too, precision is not the cause of the error.
    """
    if fp32_engine.failure_reason:
        return [f"not built: {fp32_engine.failure_reason}", "not built"]
    accuracy = fp32_engine.accuracy
    if not fp32_engine_fault_text(fp32_engine) or accuracy is None or accuracy.worst_errors is None:
        return ["matches ONNX Runtime"]
    difference_text = (
        f"{accuracy.nonfinite_count} NaN or Inf"
        if accuracy.nonfinite_count
        else f"differs by {add_decibel_unit(accuracy.worst_errors.sqnr_text(''))}"
    )
    return [f"not a precision problem: {difference_text}", "not a precision problem", "FP32 engine differs"]


# -- groups ---------------------------------------------------------------------------------------------------------


def implementation_text(implementation: GroupImplementation | None, requested_precision: Precision) -> str:
    """Returns the precision of a group in an engine, for a column.

    The text is ``FP16``, or ``≠ FP16`` if another precision was requested. It is ``fused`` or ``?`` if TensorRT does
    not report the precision, and "" without an implementation.
    """
    if implementation is None:
        return ""
    shown_precision = implementation.implemented_precision(requested_precision)
    if shown_precision is None:
        return "fused" if implementation.in_fused_region or implementation.possible_precisions else "?"
    return (
        f"{OTHER_PRECISION_MARK} {shown_precision.label}"
        if shown_precision is not requested_precision
        else shown_precision.label
    )


def group_engine_sentences(shown_engine: ShownEngine, group: FusionGroup, requested_precision: Precision) -> list[str]:
    """Returns sentences about a group in an engine: precision, time, reformat layers, and whether it is in a fused region.

    Args:
        requested_precision: The precision in the current config.
    """
    implementation = shown_engine.result.implementations.get(group.name)
    if implementation is None:
        return ["no engine layer is named after it"] if shown_engine.result.implementations else []
    built_precision = shown_engine.config.precision_of(group)
    text = implementation.precision.label if implementation.precision is not None else "precision not reported"
    if has_unrequested_precision(group, shown_engine.config, shown_engine.result.implementations):
        text += (
            f", {group.precision_label(built_precision)} was requested"
            if shown_engine.is_stale
            else f", requested {group.precision_label(built_precision)}"
        )
    elif requested_precision is not built_precision:
        text += f", {group.precision_label(requested_precision)} requested since"
    parts = [f"{shown_engine.name}: {text}" if shown_engine.is_stale else text]
    if implementation.latency_ms is not None:
        parts.append(milliseconds_text(implementation.latency_ms))
    if implementation.reformat_count:
        parts.append(f"{counted_noun_text(implementation.reformat_count, 'reformat')} around it")
    sentences = [" · ".join(parts)]
    if implementation.in_fused_region:
        sentences.append("inside a fused region: TensorRT reports no more")
    return sentences


# -- one engine -----------------------------------------------------------------------------------------------------


def build_origin_text(engine_result: EngineResult) -> str:
    """Returns a phrase about the build of an engine, such as ``built in 26 s with a timing cache``."""
    if engine_result.build_origin == "engine cache":
        return "built, from the engine cache"
    origin_text = {"timing cache": " with a timing cache", "cold": " cold"}.get(engine_result.build_origin, "")
    return f"built in {duration_text(engine_result.build_s)}{origin_text}" if engine_result.build_s else "built"


# -- what to do next ------------------------------------------------------------------------------------------------


def engine_alert_text(session: Session) -> str:
    """Returns a fault of the current config's engine, with the key that shows more; "" if there is none.

    A missed target alone is not such a fault.
    """
    result = session.get_run_results("config").engine_result
    if result is None:
        return ""
    if fp32_engine_fault_text(session.results.fp32_engine):
        return f"FP32 differs too, not a precision problem: {shown_key('engine')} shows more"
    if not result.is_built_as_requested:
        return f"not built as requested: {shown_key('engine')} shows what was built"
    simulated_accuracy = session.get_run_results("config").accuracy
    gap = engine_sqnr_gap_db(simulated_accuracy, result.accuracy)
    broken = (
        result.accuracy is not None
        and result.accuracy.nonfinite_count
        and simulated_accuracy is not None
        and not simulated_accuracy.nonfinite_count
    )
    if not broken and (gap is None or gap <= UNEXPLAINED_GAP_DB):
        return ""
    return simulation_engine_gap_text(gap) + f": {shown_key('engine')} shows what to check"


_MARK_SENTENCES = {
    NO_EFFECT: "no effect: the engine is the same without this choice",
    BREAKS_MHA: "splits MHA: without this choice the attention is one kernel",
    STANDALONE_QDQ: "unfused Q/DQ: a fusion did not happen",
}


def find_shown_preview(session: Session, run: str) -> Preview | None:
    """Returns the preview of a run's config; None if there is no preview, if a built engine of the config replaces it,
    or if it is refused without a layer as the reason."""
    results = session.get_run_results(run)
    preview = results.preview
    if (
        results.engine_result is not None
        and results.engine_result.implementations
        or preview is not None
        and preview.refusal is not None
        and not preview.refusal.layer
    ):
        return None
    return preview


def preview_refusal_text(session: Session) -> str:
    """Returns the reason why the current config has no preview, and the remedy; "" if a preview exists or is not
    requested."""
    preview = session.get_run_results("config").preview
    preview_refusal = preview.refusal if preview is not None else session.preview_refusal
    if preview_refusal is None:
        return ""
    builder = preview.builder_text if preview is not None and preview.builder_release else "TensorRT-RTX"
    return (
        f"{preview_refusal.refusal_text}. {preview_refusal.next_step}"
        if preview_refusal.is_rtx_missing
        else f"refused by {builder}: {preview_refusal.refusal_text}"
    )


def differs_in_preview(preview: Preview, group: FusionGroup, requested_precision: Precision) -> bool:
    """Returns True if a preview refuses a fusion group, or if it runs the group in another precision or with a remark."""
    if preview.refusal is not None:
        return bool(preview.refusal.layer) and preview.refusal.layer in (group.name, *group.layers)
    implementation = preview.implementations.get(group.name)
    return (
        bool(preview.list_precision_independent_remarks(group))
        or implementation is not None
        and (is_unrequested_precision(group, requested_precision, implementation))
    )


def preview_implementation_sentences(
    preview: Preview, group: FusionGroup, requested_precision: Precision, titles: Mapping[str, str]
) -> list[str]:
    """Returns sentences about the preview of a group: precision and kernel, neighbours, then one sentence for each
    remark."""
    title = f"preview {preview.builder_text}"
    if preview.refusal is not None:
        return (
            [f"{title}: {preview.refusal.refusal_text}"] if preview.refusal.layer in (group.name, *group.layers) else []
        )
    implementation = preview.implementations.get(group.name)
    if implementation is None:
        return [f"{title}: no kernel is named after it"]
    shown_precision, requested_label = (
        implementation.implemented_precision(group.precision_shown_by_engine(requested_precision)),
        group.precision_label(requested_precision),
    )
    text = shown_precision.label if shown_precision is not None else "its kernel does not report types inside"
    if is_unrequested_precision(group, requested_precision, implementation):
        text = f"{OTHER_PRECISION_MARK} {text}, requested {requested_label}"
    parts = [f"{title}: {text}"]
    if implementation.sharing_groups:
        parts.append(f"one kernel {kernel_sharing_text(implementation, group, titles)}")
    if neighbours := adjacent_layers_text(implementation):
        parts.append(f"{neighbours} around it")
    unused = find_unused_quantization_of_group(group, requested_precision, implementation)
    unused_sentences = [f"{unused.finding_text} (key {shown_key('free')} takes them out)"] if unused else []
    mark_sentences = [_MARK_SENTENCES[mark] for mark in preview.list_precision_independent_remarks(group)]
    return [
        " · ".join(parts),
        *unused_sentences,
        *mark_sentences,
    ]


def engine_page_title(session: Session) -> str:
    shown_engine = find_shown_engine(session)
    if shown_engine is None:
        return "The FP32 engine"
    return (
        f"The engine of {shown_engine.name}{f', built before {config_name(session)}' if shown_engine.is_stale else ''}"
    )


def engine_page_lines(session: Session, width: int) -> list[Line]:
    """Returns the lines of the engine page for the current config: values, checks, layers."""
    shown_engine, fp32_engine = find_shown_engine(session), session.results.fp32_engine
    network, engines = session.opened_network.outline, dict[str, EngineResult]()
    runs, checks, layers = list[ReportedRun](), list[Block](), list[Block]()
    if shown_engine is not None:
        name, config, result = shown_engine.name, shown_engine.config, shown_engine.result
        results = session.results.get_results_or_empty(config)
        simulated = result.select_comparable_simulation(results.accuracy)
        divergence = None if shown_engine.is_stale else session.find_engine_divergence("config")
        engines[name] = result
        runs = [
            *list_engine_runs(name, replace(result, simulated_accuracy=simulated)),
            *(
                ReportedRun(f"{name} at {shape}", RunRow(accuracy))
                for shape, accuracy in result.shape_accuracies.items()
            ),
        ]
        suggested = suggest_engine_checks(network, config, simulated, result, fp32_engine, divergence)
        values = [(column.title, column.text(RunRow(engine=result))) for column in list_run_columns("engines")]
        checks = [
            engine_check_lines(name, result, simulated, suggested),
            [f"{title}: {text}" for title, text in values if text],
        ]
        layers = [
            *engine_error_blocks(network, name, result.engine_errors, results.group_errors, divergence),
            precision_share_table(engines),
        ]
        if result.engine_report is not None:
            layers += [*unrequested_group_blocks(network, config, result), slowest_layer_table(result.engine_report)]
    if fp32_engine is not None:
        engines[FP32_ENGINE_TITLE] = fp32_engine
        runs += list_engine_runs(FP32_ENGINE_TITLE, fp32_engine)
    return block_lines(
        [
            accuracy_table(session, runs),
            *build_attempt_blocks(engines),
            fp32_engine_fault_lines(fp32_engine),
            *checks,
            engine_remark_lines(engines),
            *layers,
        ],
        width,
    )
