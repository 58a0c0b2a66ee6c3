"""The comparison of two dumps of tensors: `compare A.json B.json`."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trt_tui.cli.output_files import check_output_paths, json_text, write_text_outputs
from trt_tui.cli.streams import print_messages, print_table
from trt_tui.cli.usage import find_given_options, no_effect_text
from trt_tui.errors import ExitCode, InputError

if TYPE_CHECKING:
    from trt_tui.cli.headless_session import ConfigWriter
    from trt_tui.core.measure.dump_comparison import TensorDifference
    from trt_tui.core.network.layers import NetworkOutline
    from trt_tui.jobs.events import DumpsCompared
    from trt_tui.options import Options

DUMP_OPTIONS = frozenset(("threshold", "network", "output"))
"""Options that apply only to a comparison of two dumps, by parameter name."""

_CONFIG_OPTIONS = ("config_paths", "force", "calib_cache")
"""Options of the config that a fix starts from."""

_MAX_LISTED_TENSORS = 10
"""The maximum number of tensors in the printed table, besides the first over the threshold."""

_ALLOWED_OPTIONS = DUMP_OPTIONS | {"json_path", "verbose", *_CONFIG_OPTIONS}


@dataclass(frozen=True)
class DumpComparisonOptions:
    """The options of a comparison of two dumps: inputs, threshold and output files.

    Attributes:
        output_path: The file of a precision.json.
        config_path: The config that a fix starts from. None for FP16 in all layers, or for the file precision of a
            quantized network.
        force_config: True accepts a config that was made for another structure.
        network_options: The network of both dumps, with the options of the config; None without a network.
    """

    first_dump: str
    second_dump: str
    threshold: float
    json_path: str | None
    output_path: str | None
    config_path: str | None
    force_config: bool
    network_options: Options | None


def is_dump(dump_spec: str) -> bool:
    """Returns True if a path names a dump, whether it exists or not. The reader of dumps refuses pickles."""
    from pathlib import Path

    from trt_tui.core.data.array_files import PICKLE_SUFFIXES
    from trt_tui.core.data.dumps import DUMP_SUFFIXES, split_dump_spec

    suffix = split_dump_spec(dump_spec)[0].suffix.lower()
    return suffix in (*DUMP_SUFFIXES, *PICKLE_SUFFIXES) or Path(dump_spec).is_dir()


def parse_outputs_spec(outputs_spec: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Returns the file and the runs of ``FILE.json[:RUN,...]``, without duplicates. No runs mean all runs.

    Raises:
        InputError: A run does not exist.
    """
    from trt_tui.core.data.dumps import split_dump_spec
    from trt_tui.formatting import RUN_TITLES

    if outputs_spec is None:
        return None, ()
    path, names = split_dump_spec(outputs_spec)
    if not names and not outputs_spec.endswith(":"):
        return outputs_spec, ()
    runs = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in runs if name not in ("fp32", *RUN_TITLES)]:
        raise InputError(f"there is no run {unknown[0] or 'without a name'} to save",
                         f"available: {', '.join(('fp32', *RUN_TITLES))}",
                         f"Name some of them with commas: --save-outputs {path}:fp32.")
    return str(path), runs


def is_dump_comparison(model: str, second_path: str | None, config_paths: Sequence[str]) -> bool:
    """Returns True if the command compares two dumps, and False if it compares a network.

    Raises:
        InputError: The arguments are neither, or options of one kind are used with the other.
    """
    command_options = find_given_options()
    if second_path is None and not is_dump(model):
        if ineffective := [text for name, text in command_options.items() if name in DUMP_OPTIONS]:
            raise InputError(no_effect_text(ineffective), "it applies to two dumps of tensors",
                             "Name both: trt-tui compare A.json B.json.")
        return False
    if second_path is None:
        raise InputError(f"{model} has nothing to be compared with", "a dump is compared with another dump or with a "
                                                                     "network",
                         f"Name both dumps, or the network: trt-tui compare MODEL.onnx --reference {model}.")
    if not (is_dump(model) and is_dump(second_path)):
        raise InputError(f"{model} and {second_path} are not two dumps of tensors",
                         "two files that end in .json or .npz are compared, or one network",
                         "To compare a network with outputs, use --reference OUTPUTS.json.")
    if model == second_path:
        raise InputError(f"{model} is compared with itself", "", f"Name two runners of the file: {model}:RUNNER.")
    if len(config_paths) > 1:
        raise InputError("a fix starts from one config", f"{len(config_paths)} are named", "Name one with --config.")
    if ineffective := [text for name, text in command_options.items() if name not in _ALLOWED_OPTIONS]:
        raise InputError(no_effect_text(ineffective), "two dumps of tensors are compared, and "
                         "nothing is run", "Leave it out, or name a network.")
    fix_options = ("output", *_CONFIG_OPTIONS)
    if "network" not in command_options and (fix_only :=
                                             [text for name, text in command_options.items() if name in fix_options]):
        raise InputError(f"{' and '.join(fix_only)} needs a network", "a fix is made for one", "Name it with --model.")
    if "force" in command_options and not config_paths:
        raise InputError(no_effect_text([command_options["force"]]),
                         "it allows a config of another network structure, and no config is named",
                         "Name one with --config, or leave it out.")
    if "calib_cache" in command_options and "output" not in command_options:
        raise InputError(no_effect_text(["--calib-cache"]), "-o takes ranges from it, and is not named",
                         "Add -o precision.json, or leave it out.")
    return True


def inspect_dump(dump_path: str) -> None:
    """Prints the shape and the values of each tensor of a dump."""
    from trt_tui.cli.headless_session import open_dump_session
    from trt_tui.formatting import counted_noun_text, escape_hidden_characters, number_text, table_lines
    from trt_tui.jobs.events import DumpInspected
    from trt_tui.jobs.requests import InspectDump

    if ineffective := list(find_given_options().values()):
        raise InputError(no_effect_text(ineffective), "a dump of tensors is inspected", "Leave it out, or name a "
                                                                                        "network.")
    with open_dump_session(InspectDump(dump_path), (), DumpInspected) as dump:
        rows = [["tensor", "type", "shape", "min", "max", "mean", "NaN", "Inf"]]
        rows += [[tensor.tensor, tensor.type_name, "x".join(map(str, tensor.shape)) or "1",
                  *map(number_text, (tensor.minimum, tensor.maximum, tensor.mean)), str(tensor.nan_count),
                  str(tensor.inf_count)] for tensor in dump.tensors]
        print_table("\n".join((f"{escape_hidden_characters(dump.source)}: "
                               f"{counted_noun_text(len(dump.tensors), 'tensor')}, "
                               f"{counted_noun_text(dump.iterations, 'iteration')}", "",
                               *table_lines(rows, left_aligned_columns=3))))


def compare_dumps(comparison_options: DumpComparisonOptions) -> None:
    """Compares two dumps, and prints and writes the result. Exits with code 1 if a tensor exceeds the threshold."""
    from trt_tui.cli.headless_session import ConfigWriter, open_dump_session
    from trt_tui.core.measure.runs import Run, RunKind
    from trt_tui.core.precision import Precision
    from trt_tui.jobs.events import DumpsCompared
    from trt_tui.jobs.requests import CompareDumps

    options = comparison_options.network_options
    arguments = {"data": comparison_options.first_dump, "calib_data": comparison_options.second_dump,
                 "calib_cache": options.calib_cache if options is not None else None}
    written_paths = check_output_paths(
        options.model if options is not None else comparison_options.first_dump, arguments,
        comparison_options.config_path, comparison_options.json_path, comparison_options.output_path,
        config_output=comparison_options.output_path)
    reference, run = (Run("", RunKind.DUMP, file_path=spec)
                      for spec in (comparison_options.first_dump, comparison_options.second_dump))
    request = CompareDumps(reference, run, comparison_options.threshold)
    if options is None:
        with open_dump_session(request, written_paths, DumpsCompared) as comparison:
            _write_dump_comparison(comparison_options, comparison)
    else:
        with ConfigWriter(options, comparison_options.config_path, force=comparison_options.force_config,
                          default_precision=Precision.FP16, written_paths=written_paths) as writer:
            comparison = writer.compare_dumps(request)
            _write_dump_comparison(comparison_options, comparison)
            if comparison_options.output_path is not None:
                _write_raised_config(comparison_options, writer, comparison)
    if any(tensor.exceeds_threshold for tensor in comparison.tensors):
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _write_dump_comparison(comparison_options: DumpComparisonOptions, comparison: DumpsCompared) -> None:
    """Writes the JSON record of a dump comparison and prints its table."""
    write_text_outputs([(comparison_options.json_path, lambda _: _dump_comparison_json(
        comparison, comparison_options.threshold, comparison_options.network_options is not None))], None)
    if "-" not in (comparison_options.json_path, comparison_options.output_path):
        print_table("\n".join(_dump_comparison_lines(comparison, comparison_options)))


def _write_raised_config(comparison_options: DumpComparisonOptions, writer: ConfigWriter,
                         comparison: DumpsCompared) -> None:
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
    write_text_outputs([(comparison_options.output_path, lambda writer: writer.precision_json_text(comparison.sha256))],
                       writer)
    if comparison_options.config_path is None and not writer.outline.has_file_precision:
        print_messages("All other layers are in FP16. If the second dump is of another config, name it with --config.")
    if comparison_options.output_path != "-":
        next_steps = _next_step_lines(str(comparison_options.output_path), writer.outline,
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


def _dump_comparison_lines(comparison: DumpsCompared, comparison_options: DumpComparisonOptions) -> list[str]:
    """Returns the report of a dump comparison: a summary, the worst tensors in network order, and advice."""
    from trt_tui import formatting
    from trt_tui.core.measure.error_metrics import list_error_columns

    over_count = sum(tensor.exceeds_threshold for tensor in comparison.tensors)
    lines = ([
        f"{comparison.run.name} against "
        f"{comparison.reference.name}: {formatting.counted_noun_text(len(comparison.tensors), 'tensor')} of both, "
        f"{formatting.counted_noun_text(comparison.iterations, 'iteration')}, "
        f"{over_count} over a relative error of {comparison_options.threshold:g}"
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


def _dump_comparison_json(comparison: DumpsCompared, threshold: float, with_network: bool) -> str:
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
