"""The command `dumps`, which compares two dumps of tensors, or lists the tensors of one."""

from __future__ import annotations

import math
import shlex
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CALIB_CACHE_OPTION,
    CONFIG_OPTION,
    CONTEXT_SETTINGS,
    FORCE_OPTION,
    FREQUENT,
    VERBOSE_OPTIONS,
    Command,
    collect_options,
    complete_files,
    file_path_option,
    make_option_check_callback,
    option_under_heading,
    require_model_file,
)
from trt_tui.cli.output_files import json_text, write_text_outputs
from trt_tui.cli.streams import print_messages, print_table
from trt_tui.errors import ExitCode, InputError

if TYPE_CHECKING:
    from trt_tui.cli.headless_session import ConfigWriter
    from trt_tui.core.measure.dump_comparison import TensorDifference
    from trt_tui.core.network.layers import NetworkOutline
    from trt_tui.jobs.events import DumpsCompared

_MAX_LISTED_TENSORS = 10
"""The maximum number of tensors in the printed table, besides the first over the threshold."""


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@click.argument("first", metavar="DUMP", is_eager=True, shell_complete=complete_files,
                callback=make_option_check_callback(require_model_file))
@click.argument("second", metavar="[DUMP]", required=False, shell_complete=complete_files)
@option_under_heading(FREQUENT, "--threshold", metavar="X", default=0.1, show_default=True,
                      type=click.FloatRange(min=0, min_open=True),
                      help="Relative error of a tensor for exit code 1.")
@file_path_option(FREQUENT, "--model", "network", metavar="MODEL", help="The network of both dumps.")
@file_path_option(FREQUENT, "-o", "--output", metavar="OUT", help="Write a config with the layers at fault in FP32.")
@CONFIG_OPTION
@FORCE_OPTION
@CALIB_CACHE_OPTION
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON (schema v1); - for stdout.")
@VERBOSE_OPTIONS[0]
def dumps(first: str, second: str | None, threshold: float, network: str | None, output: str | None,
          config_path: str | None, force: bool, json_path: str | None, **arguments: Any) -> None:
    """Compare the tensors of two dumps (RunResults or .npz), the second with the first.

    Exit code 1: a tensor is over the threshold.

    With one dump: the shape, range, mean, NaN and Inf of each tensor.
    """
    from trt_tui.cli.headless_session import open_config_writer, open_dump_session
    from trt_tui.core.measure.results import Run, RunKind
    from trt_tui.core.precision import Precision
    from trt_tui.jobs.events import DumpsCompared
    from trt_tui.jobs.requests import CompareDumps

    if second is None:
        _print_dump(first)
        return
    if first == second:
        raise InputError(f"{first} is compared with itself", "", f"Name two runners of the file: {first}:RUNNER.")
    reference, run = (Run("", RunKind.DUMP, file_path=dump) for dump in (first, second))
    request = CompareDumps(reference, run, threshold)
    with ExitStack() as stack:
        if network is None:
            writer, comparison = None, stack.enter_context(open_dump_session(request, DumpsCompared))
        else:
            writer = stack.enter_context(open_config_writer(
                collect_options(arguments | {"model": network}), config_path, force=force,
                default_precision=Precision.FP16))
            comparison = writer.compare_dumps(request)
        write_text_outputs([(json_path, lambda: _comparison_json(comparison, threshold, network is not None))])
        if "-" not in (json_path, output):
            print_table("\n".join(_comparison_lines(comparison, threshold)))
        if writer is not None and output is not None:
            _write_raised_config(writer, comparison, config_path, output)
    if any(tensor.exceeds_threshold for tensor in comparison.tensors):
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _print_dump(dump_path: str) -> None:
    """Prints the shape and the values of each tensor of a dump."""
    from trt_tui.cli.headless_session import open_dump_session
    from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text, table_lines
    from trt_tui.jobs.events import DumpInspected
    from trt_tui.jobs.requests import InspectDump

    with open_dump_session(InspectDump(dump_path), DumpInspected) as dump:
        rows = [["tensor", "type", "shape", "min", "max", "mean", "NaN", "Inf"]]
        rows += [[tensor.tensor, tensor.type_name, "x".join(map(str, tensor.shape)) or "1",
                  *map(number_text, (tensor.minimum, tensor.maximum, tensor.mean)), str(tensor.nan_count),
                  str(tensor.inf_count)] for tensor in dump.tensors]
        print_table("\n".join((f"{escape_hidden_characters(dump.source)}: "
                               f"{counted_noun_text(len(dump.tensors), 'tensor')}, "
                               f"{counted_noun_text(dump.iterations, 'iteration')}", "",
                               *table_lines(rows, left_aligned_columns=3))))


def _write_raised_config(writer: ConfigWriter, comparison: DumpsCompared, config_path: str | None,
                         output_path: str) -> None:
    """Writes a precision.json in which the layers with errors are in FP32, and prints the next commands."""
    from trt_tui.core.measure.dump_comparison import find_groups_to_raise_to_fp32
    from trt_tui.formatting import name_list_text

    groups = find_groups_to_raise_to_fp32(comparison.tensors)
    if not groups:
        reason = "No layer with a selectable precision computes a tensor over the threshold"
        if not any(tensor.exceeds_threshold for tensor in comparison.tensors):
            reason = "No tensor is over the threshold, so no fix is needed"
        elif any(tensor.is_origin_unknown for tensor in comparison.tensors):
            reason = "The dumps have no tensor before the error, and do not show in which layer it begins"
        print_messages(f"{reason}: no fix was written.")
        return
    if not writer.raise_groups_to_fp32(groups):
        print_messages(
            f"The config keeps {name_list_text(groups)} in FP32 already, so nothing was written. Was the engine built "
            "with this config, and do both dumps come from the same inputs?")
        return
    writer.add_calibration_cache_ranges()
    write_text_outputs([(output_path, lambda: writer.precision_json_text(comparison.sha256))])
    if config_path is None and not writer.outline.has_file_precision:
        print_messages("All other layers are in FP16. If the second dump is of another config, name it with --config.")
    if output_path != "-":
        next_steps = _next_step_lines(output_path, writer.outline,
                                      bool(writer.list_tensors_without_range()))
        print_messages(*(f"Next: {line}" for line in next_steps))


def _next_step_lines(config_path: str, network: NetworkOutline, lacks_ranges: bool) -> list[str]:
    """Returns the commands that check the written config and build with it."""
    command = f"trt-tui {{}} {shlex.quote(str(network.path))} --config {shlex.quote(config_path)}"
    data_text = ", with --data D" if lacks_ranges else ""
    open_inputs = [info.name for info in network.inputs if info.shape is None
                   or any(not isinstance(size, int) for size in info.shape)]
    shapes_text = f" --shapes {open_inputs[0]}:MIN:OPT:MAX" if open_inputs else ""
    return [
        f"{command.format('compare')} --data D shows the accuracy of the config"
        + (", and calibrates, since the config has no ranges." if lacks_ranges else "."),
        f"{command.format('export')} --format onnx -o typed.onnx writes the network for TensorRT 10 and later"
        f"{data_text}.",
        f"{command.format('export')} --format polygraphy{shapes_text} -o fix.py writes a script for TensorRT 8.6 to 10"
        f"{data_text}."]


def _comparison_lines(comparison: DumpsCompared, threshold: float) -> list[str]:
    """Returns the report of a dump comparison: a summary, the worst tensors in network order, and advice."""
    from trt_tui import formatting
    from trt_tui.core.measure.error_metrics import list_error_columns

    over_count = sum(tensor.exceeds_threshold for tensor in comparison.tensors)
    lines = ([
        f"{comparison.run.name} against "
        f"{comparison.reference.name}: {formatting.counted_noun_text(len(comparison.tensors), 'tensor')} of both, "
        f"{formatting.counted_noun_text(comparison.iterations, 'iteration')}, "
        f"{over_count} over a relative error of {threshold:g}"
    ])
    for run, names in ((comparison.reference, comparison.only_in_reference),
                       (comparison.run, comparison.only_in_run)):
        if names:
            lines.append(f"only in {run.name}: {formatting.name_list_text(names)}")
    if foreign_names := [tensor.tensor for tensor in comparison.tensors if tensor.is_missing_in_network]:
        lines.append(f"not in the network: {formatting.name_list_text(foreign_names)}")
    worst = sorted(range(len(comparison.tensors)),
                   key=lambda index: -comparison.tensors[index].relative_error)[:_MAX_LISTED_TENSORS]
    first_over = next((index for index, tensor in enumerate(comparison.tensors) if tensor.exceeds_threshold), None)
    listed_indices = sorted({*worst, *([first_over] if first_over is not None else [])})
    metrics = list_error_columns("dumps")
    rows = [["tensor", "shape", *(metric.column_heading for metric in metrics), "max rel", "mean rel", "NaN/Inf", ""]]
    for index in listed_indices:
        tensor = comparison.tensors[index]
        mark = _tensor_error_mark(tensor)
        rows.append([
            tensor.tensor, "x".join(map(str, tensor.shape)) or "1", tensor.sqnr_text,
            *map(tensor.errors.value_text, metrics[1:]),
            formatting.number_text(tensor.max_relative_error),
            formatting.number_text(tensor.mean_relative_error),
            str(tensor.nonfinite_count), mark
        ])
    if len(listed_indices) < len(comparison.tensors):
        lines.append(f"the worst {len(listed_indices)} of them, in network order (--json has all):")
    return [*lines, "", *formatting.table_lines(rows, left_aligned_columns=2), "", *comparison.advice_lines]


def _tensor_error_mark(tensor_difference: TensorDifference) -> str:
    """Returns the remark about a tensor in the table of two dumps, such as "over" if it exceeds the threshold."""
    if tensor_difference.exceeds_threshold:
        return "over, begins here" if tensor_difference.begins_error else "over"
    return "scaled" if tensor_difference.is_scaled else "NaN in both" if tensor_difference.common_nan_count else ""


def _comparison_json(comparison: DumpsCompared, threshold: float, with_network: bool) -> str:
    """Returns a dump comparison as JSON of schema ``dumps-v1``."""
    from trt_tui.core.report.json_record import error_metrics_record

    def finite_or_none(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    tensors = {
        tensor.tensor: {
            **error_metrics_record(tensor.errors), "shape": list(tensor.shape), "relative": finite_or_none(
                tensor.relative_error), "max_relative": finite_or_none(tensor.max_relative_error),
            "mean_relative": finite_or_none(tensor.mean_relative_error),
            "not_finite_in_first": tensor.first_nonfinite_count, "nan_in_both": tensor.common_nan_count,
            "masked": tensor.masked_count, **({"scaled": True} if tensor.is_scaled else {}),
            "over": tensor.exceeds_threshold, "begins": tensor.begins_error,
            **({"group": tensor.group_name} if tensor.group_name else {}),
            **({"in_network": not tensor.is_missing_in_network} if with_network else {})
        }
        for tensor in comparison.tensors
    }
    return json_text({
        "format": "trt-tui/dumps", "version": 1, "first": comparison.reference.name, "second": comparison.run.name,
        "iterations": comparison.iterations, "threshold": threshold, "tensors": tensors,
        "first_over": next((tensor.tensor for tensor in comparison.tensors if tensor.exceeds_threshold), None),
        "only_in_first": list(comparison.only_in_reference), "only_in_second": list(comparison.only_in_run),
        "advice": list(comparison.advice_lines)})
