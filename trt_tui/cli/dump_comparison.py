"""The comparison of two dumps of tensors, and the list of the tensors of one, for the command `dumps`."""

import shlex

from trt_tui.cli.headless_session import HeadlessSession, open_config_session
from trt_tui.cli.output_files import json_text, write_text_outputs
from trt_tui.cli.streams import print_messages, print_report
from trt_tui.core.lowering.network_rewrite import replace_all_file_precisions
from trt_tui.core.measure.dump_comparison import TensorDifference, find_groups_to_raise_to_fp32
from trt_tui.core.measure.error_metrics import finite_or_none, list_error_columns
from trt_tui.core.measure.results import Run, RunKind
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.report.json_record import error_metrics_record
from trt_tui.errors import ExitCode
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text, number_text, table_lines
from trt_tui.jobs.events import DumpInspected, DumpsCompared
from trt_tui.jobs.requests import CompareDumps, InspectDump, UseRanges
from trt_tui.options import Options
from trt_tui.session.comparison_report import precision_json_text

_MAX_LISTED_TENSORS = 10
"""The maximum number of tensors in the printed table, besides the first over the threshold."""


def compare_dumps(
    first: str,
    second: str,
    threshold: float,
    options: Options,
    config_path: str | None,
    force: bool,
    json_path: str | None,
    output_path: str | None,
) -> ExitCode:
    """Prints and writes a comparison of two dumps, and writes a config for the layers at fault if requested.

    Returns `ExitCode.TOLERANCE_NOT_MET` if a tensor is over the threshold.

    Args:
        options: The options with the network of both dumps; its ``model`` is "" if none is named.
    """
    reference, run = (Run("", RunKind.DUMP, file_path=dump) for dump in (first, second))
    with open_config_session(options, config_path, force=force, default_precision=Precision.FP16) as session:
        scaled_tensors = [
            tensor
            for (_, subject), move in session.config.moves.items()
            for tensor in move.find_divisors(session.network_outline, subject)
        ]
        comparison = session.request_answer(
            CompareDumps(reference, run, threshold, tuple(scaled_tensors)), DumpsCompared
        )
        write_text_outputs([(json_path, lambda: _comparison_json(comparison, threshold, bool(options.model)))])
        if "-" not in (json_path, output_path):
            print_report("\n".join(_comparison_lines(comparison, threshold)))
        if output_path is not None:
            _write_raised_config(session, comparison, config_path, output_path)
    is_over = any(tensor.exceeds_threshold for tensor in comparison.tensors)
    return ExitCode.TOLERANCE_NOT_MET if is_over else ExitCode.DONE


def print_dump(dump_path: str) -> None:
    """Prints the shape and the values of each tensor of a dump."""
    with open_config_session(Options("")) as session:
        dump = session.request_answer(InspectDump(dump_path), DumpInspected)
        rows = [["tensor", "type", "shape", "min", "max", "mean", "NaN", "Inf"]]
        rows += [
            [
                tensor.tensor,
                tensor.type_name,
                "x".join(map(str, tensor.shape)) or "1",
                *map(number_text, (tensor.minimum, tensor.maximum, tensor.mean)),
                str(tensor.nan_count),
                str(tensor.inf_count),
            ]
            for tensor in dump.tensors
        ]
        print_report(
            "\n".join(
                (
                    f"{escape_hidden_characters(dump.source)}: "
                    f"{counted_noun_text(len(dump.tensors), 'tensor')}, "
                    f"{counted_noun_text(dump.iterations, 'iteration')}",
                    "",
                    *table_lines(rows, left_aligned_columns=3),
                )
            )
        )


def _write_raised_config(
    session: HeadlessSession, comparison: DumpsCompared, config_path: str | None, output_path: str
) -> None:
    """Writes a precision.json in which the layers with errors are in FP32, and prints the next commands."""
    names, network = find_groups_to_raise_to_fp32(comparison.tensors), session.network_outline
    if not names:
        reason = "No layer with a selectable precision computes a tensor over the threshold"
        if not any(tensor.exceeds_threshold for tensor in comparison.tensors):
            reason = "No tensor is over the threshold, so no fix is needed"
        elif any(tensor.is_origin_unknown for tensor in comparison.tensors):
            reason = "The dumps have no tensor before the error, and do not show in which layer it begins"
        print_messages(f"{reason}: no fix was written.")
        return
    groups = [
        group for name in names if session.config.precision_of(group := network.get_group(name)) is not Precision.FP32
    ]
    if not groups:
        print_messages(
            f"The config keeps {name_list_text(names)} in FP32 already, so nothing was written. Was the engine built "
            "with this config, and do both dumps come from the same inputs?"
        )
        return
    session.history.push_config(session.config.with_group_precision(groups, Precision.FP32, "dumps"))
    if session.options.calib_cache is not None:
        session.run_request(UseRanges(session.file_ranges, True))
    write_text_outputs([(output_path, lambda: precision_json_text(session, comparison.sha256))])
    if config_path is None and not network.has_file_precision:
        print_messages("All other layers are in FP16. If the second dump is of another config, name it with --config.")
    if output_path != "-":
        next_steps = _next_step_lines(output_path, network, _lacks_ranges(session))
        print_messages(*(f"Next: {line}" for line in next_steps))


def _lacks_ranges(session: HeadlessSession) -> bool:
    """Returns True if the range of a quantized tensor of the config is unknown."""
    network, ranges = session.network_outline, (session.calibration or session.file_ranges).ranges
    config = replace_all_file_precisions(network, session.config)
    return any(
        site.tensor not in ranges and site.tensor not in config.range_moves
        for group in network.groups
        for site in group.calibrated_qdq_sites(config.precision_of(group))
    )


def _next_step_lines(config_path: str, network: NetworkOutline, lacks_ranges: bool) -> list[str]:
    """Returns the commands that check the written config and build with it."""
    command = f"trt-tui {{}} {shlex.quote(str(network.path))} --config {shlex.quote(config_path)}"
    data_text = ", with --data D" if lacks_ranges else ""
    open_inputs = [
        info.name
        for info in network.inputs
        if info.shape is None or any(not isinstance(size, int) for size in info.shape)
    ]
    shapes_text = f" --shapes {open_inputs[0]}:MIN:OPT:MAX" if open_inputs else ""
    return [
        f"{command.format('compare')} --data D shows the accuracy of the config"
        + (", and calibrates, since the config has no ranges." if lacks_ranges else "."),
        f"{command.format('export')} --format onnx -o typed.onnx writes the network for TensorRT 10 and later"
        f"{data_text}.",
        f"{command.format('export')} --format polygraphy{shapes_text} -o fix.py writes a script for TensorRT 8.6 to 10"
        f"{data_text}.",
    ]


def _comparison_lines(comparison: DumpsCompared, threshold: float) -> list[str]:
    """Returns the report of a dump comparison: a summary, the worst tensors in network order, and advice."""
    over_count = sum(tensor.exceeds_threshold for tensor in comparison.tensors)
    lines = [
        f"{comparison.run.name} against "
        f"{comparison.reference.name}: {counted_noun_text(len(comparison.tensors), 'tensor')} of both, "
        f"{counted_noun_text(comparison.iterations, 'iteration')}, "
        f"{over_count} over a relative error of {threshold:g}"
    ]
    for run, names in ((comparison.reference, comparison.only_in_reference), (comparison.run, comparison.only_in_run)):
        if names:
            lines.append(f"only in {run.name}: {name_list_text(names)}")
    if foreign_names := [tensor.tensor for tensor in comparison.tensors if tensor.is_missing_in_network]:
        lines.append(f"not in the network: {name_list_text(foreign_names)}")
    worst = sorted(range(len(comparison.tensors)), key=lambda index: -comparison.tensors[index].relative_error)[
        :_MAX_LISTED_TENSORS
    ]
    first_over = next((index for index, tensor in enumerate(comparison.tensors) if tensor.exceeds_threshold), None)
    listed_indices = sorted({*worst, *([first_over] if first_over is not None else [])})
    metrics = list_error_columns("dumps")
    rows = [["tensor", "shape", *(metric.column_heading for metric in metrics), "max rel", "mean rel", "NaN/Inf", ""]]
    for index in listed_indices:
        tensor = comparison.tensors[index]
        mark = _tensor_error_mark(tensor)
        rows.append(
            [
                tensor.tensor,
                "x".join(map(str, tensor.shape)) or "1",
                tensor.sqnr_text,
                *map(tensor.errors.value_text, metrics[1:]),
                number_text(tensor.max_relative_error),
                number_text(tensor.mean_relative_error),
                str(tensor.nonfinite_count),
                mark,
            ]
        )
    if len(listed_indices) < len(comparison.tensors):
        lines.append(f"the worst {len(listed_indices)} of them, in network order (--json has all):")
    return [*lines, "", *table_lines(rows, left_aligned_columns=2), "", *comparison.advice_lines]


def _tensor_error_mark(tensor_difference: TensorDifference) -> str:
    """Returns the remark about a tensor in the table of two dumps, such as "over" if it exceeds the threshold."""
    marks = {
        "over": tensor_difference.exceeds_threshold,
        "begins here": tensor_difference.begins_error,
        "scaled": tensor_difference.is_scaled and not tensor_difference.exceeds_threshold,
        "NaN in both": tensor_difference.common_nan_count and not tensor_difference.exceeds_threshold,
        tensor_difference.mismatch_text: True,
    }
    return ", ".join(mark for mark, applies in marks.items() if mark and applies)


def _comparison_json(comparison: DumpsCompared, threshold: float, with_network: bool) -> str:
    """Returns a dump comparison as JSON of schema ``dumps-v1``."""

    tensors = {
        tensor.tensor: {
            **error_metrics_record(tensor.errors),
            "shape": list(tensor.shape),
            "relative": finite_or_none(tensor.relative_error),
            "max_relative": finite_or_none(tensor.max_relative_error),
            "mean_relative": finite_or_none(tensor.mean_relative_error),
            "not_finite_in_first": tensor.first_nonfinite_count,
            "nan_in_both": tensor.common_nan_count,
            "masked": tensor.masked_count,
            **({"scaled": True} if tensor.is_scaled else {}),
            "over": tensor.exceeds_threshold,
            "begins": tensor.begins_error,
            **({"group": tensor.group_name} if tensor.group_name else {}),
            **({"in_network": not tensor.is_missing_in_network} if with_network else {}),
        }
        for tensor in comparison.tensors
    }
    return json_text(
        {
            "format": "trt-tui/dumps",
            "version": 1,
            "first": comparison.reference.name,
            "second": comparison.run.name,
            "iterations": comparison.iterations,
            "threshold": threshold,
            "tensors": tensors,
            "first_over": next((tensor.tensor for tensor in comparison.tensors if tensor.exceeds_threshold), None),
            "only_in_first": list(comparison.only_in_reference),
            "only_in_second": list(comparison.only_in_run),
            "advice": list(comparison.advice_lines),
        }
    )
