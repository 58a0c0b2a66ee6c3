"""The importer of settings for NVIDIA ModelOpt: JSON, YAML, or a command line.

The keys are the arguments of ``modelopt.onnx.quantization.quantize`` and ``modelopt.onnx.autocast``; the options of
their command lines have the same names. Names are patterns for ``re.match``, as in ModelOpt, so a pattern also matches
longer names. ``nodes_to_quantize`` and ``op_types_to_quantize`` exclude all other layers. In an export of trt-tui, the
entries ``quantize`` and ``autocast`` contain the arguments of the two tools.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.importers.command_lines import split_shell_words
from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

LIST_KEYS = ("nodes_to_exclude", "nodes_to_quantize", "op_types_to_exclude", "op_types_to_quantize",
              "op_types_to_exclude_fp16", "nodes_to_include", "op_types_to_include")
_PATTERN_KEYS = ("nodes_to_exclude", "nodes_to_quantize", "nodes_to_include")
_MODE_PRECISIONS = {"int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4, "int4_awq": Precision.INT4,
                    "int4_awq_clip": Precision.INT4, "int4_rtn": Precision.INT4}
_FLOAT_PRECISIONS = {"fp32": Precision.FP32, "fp16": Precision.FP16, "bf16": Precision.BF16, "float16": Precision.FP16,
                     "float32": Precision.FP32, "bfloat16": Precision.BF16}
READ_KEYS = (*LIST_KEYS, "quantize_mode", "high_precision_dtype", "low_precision_type", "calibration_cache_path",
              "calibration_method", "enable_gemv_detection_for_trt", "keep_io_types", "quantize", "autocast")
MODELOPT_KEYS = frozenset((*LIST_KEYS, "quantize_mode", "low_precision_type"))
"""Keys by which a file of ModelOpt is recognised."""


def is_modelopt_record(record: Any) -> bool:
    """Returns True if a parsed JSON or YAML record contains arguments of ModelOpt."""
    tool_records = (record, record.get("quantize"), record.get("autocast")) if isinstance(record, Mapping) else ()
    return any(
        isinstance(tool_record, Mapping) and not MODELOPT_KEYS.isdisjoint(tool_record) for tool_record in tool_records)


_COMMAND_PATTERN = re.compile(r"^(?!\s*(?:#|import\b|from\b)).*\bmodelopt\.onnx\.(?:quantization|autocast)\b",
                              re.MULTILINE)


def is_modelopt_command(text: str) -> bool:
    """Returns True if a text contains a command line of ModelOpt's ONNX tools."""
    return bool(_COMMAND_PATTERN.search(text))


def read_modelopt_command(text: str, network: Network, file: Path) -> ImportedSettings:
    """Reads the settings in the ModelOpt command lines of a script.

    Raises:
        InputError: A command line cannot be parsed.
    """
    record: dict[str, Any] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not is_modelopt_command(line):
            continue
        arguments = split_shell_words(line, file.name)
        options: dict[str, Any] = {}
        option = ""
        for argument in arguments:
            if argument.startswith("--"):
                option, separator, value = argument[2:].partition("=")
                options[option] = [value] if separator else []
            elif option:
                options[option].append(argument)
        tool = "autocast" if "modelopt.onnx.autocast" in line else "quantize"
        record[tool] = {key: value if key in LIST_KEYS else " ".join(value) for key, value in options.items()}
    return read_modelopt(record, network, file)


def read_modelopt(record: Mapping[str, Any], network: Network, file: Path) -> ImportedSettings:
    """Reads settings from a record of ModelOpt's arguments.

    Raises:
        InputError: An entry has the wrong type or an unknown value.
    """
    tool_records = {
        tool_record: record[tool_record]
        for tool_record in ("quantize", "autocast")
        if isinstance(record.get(tool_record), Mapping)
    }
    if not tool_records:
        is_autocast = "low_precision_type" in record and "quantize_mode" not in record
        tool_records = {"autocast" if is_autocast else "quantize": record}
    settings = ImportedSettings("ModelOpt options")
    settings.restore_omitted_settings(record.get(f"_{OMISSION_MARKER}"))
    settings.tf32 = record.get("_tf32") is True
    quantize_record, autocast_record = tool_records.get("quantize"), tool_records.get("autocast")
    low_precision = _read_precision(autocast_record, "low_precision_type", _FLOAT_PRECISIONS, Precision.FP16,
                                    file) if autocast_record is not None else None
    fp32_groups: set[str] = set()
    if autocast_record is not None:
        fp32_groups |= {
            group.name
            for group in _ModelOptNameLists(autocast_record, network, file,
                                            settings.unread_lines).find_excluded_groups()
        }
    if quantize_record is None:
        settings.quantized = settings.other = low_precision or Precision.FP16
        settings.layer_precisions = dict.fromkeys(fp32_groups, Precision.FP32)
    else:
        settings.quantized = _read_precision(quantize_record, "quantize_mode", _MODE_PRECISIONS, Precision.INT8, file)
        settings.other = low_precision or _read_precision(quantize_record, "high_precision_dtype", _FLOAT_PRECISIONS,
                                                          Precision.FP16, file)
        lists = _ModelOptNameLists(quantize_record, network, file, settings.unread_lines)
        if settings.other is not Precision.FP32:
            fp32_groups |= {group.name for group in lists.find_groups_by_operator_list("op_types_to_exclude_fp16")}
        _set_layer_precisions(settings, network, {group.name for group in lists.find_excluded_groups()}, fp32_groups)
        if quantize_record.get("enable_gemv_detection_for_trt") is not False:
            settings.notes.append(
                "ModelOpt leaves out more layers by its own rules, such as products with one row or "
                "column and Convs of few channels; its log names them, and here they are quantized")
        if isinstance(cache := quantize_record.get("calibration_cache_path"), str) and cache:
            settings.cache_path = file.parent / cache
        elif settings.quantized is not Precision.INT4:
            _add_range_method_note(settings, quantize_record)
    other_keys = sorted({str(key) for tool_record in (record, *tool_records.values()) for key in tool_record
                         if key not in READ_KEYS and not str(key).startswith("_")})
    if other_keys:
        settings.unread_lines.append(f"{name_list_text(other_keys, 8)}: no precision settings")
    return settings


def _add_range_method_note(settings: ImportedSettings, quantize_record: Mapping[str, Any]) -> None:
    """Adds a note if ModelOpt would choose the ranges by another method than min-max, the default here."""
    method = quantize_record.get("calibration_method") or "entropy"
    if method == "entropy" and settings.quantized is Precision.INT8:
        settings.notes.append("ModelOpt calibrates by entropy here; --calib-method entropy does so too")
    elif method not in ("entropy", "max", "minmax"):
        settings.unread_lines.append(
            f"calibration_method {str(method)[:40]!r}: the ranges are measured by --calib-method")


def _read_precision(tool_record: Mapping[str, Any], key: str, precisions: Mapping[str, Precision], default: Precision,
                    file: Path) -> Precision:
    value = tool_record.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or value not in precisions:
        raise InputError(f"{file.name}: {key} is {str(value)[:40]!r}", f"available: {', '.join(precisions)}",
                         "Correct the file.")
    return precisions[value]


def _set_layer_precisions(settings: ImportedSettings, network: Network, unquantized_groups: set[str],
                          fp32_groups: set[str]) -> None:
    """Sets the precision of each layer that ModelOpt does not quantize.

    Args:
        unquantized_groups: The groups without Q/DQ.
        fp32_groups: The groups that stay in FP32, or have FP32 at their boundary if they are quantized.
    """
    quantized = [group.name for group in network.groups
                 if settings.quantized in group.allowed_precisions and group.name not in unquantized_groups]
    fp32_bounded = [name for name in quantized if name in fp32_groups]
    low_precision = settings.other
    if fp32_bounded and len(fp32_bounded) == len(quantized):
        settings.other = Precision.FP32
    elif fp32_bounded:
        settings.unread_lines.append(
            f"FP32 around {name_list_text(fp32_bounded, 3)}: around layers in {settings.quantized.label} the precision "
            f"is {low_precision.label}, as for most of them")
    for group in network.groups:
        if group.name not in quantized:
            settings.layer_precisions[group.name] = Precision.FP32 if group.name in fp32_groups else low_precision


class _ModelOptNameLists:
    """The lists of layer names and operators in the arguments of one ModelOpt tool.

    Raises:
        InputError: An entry has the wrong type.
    """

    def __init__(self, tool_record: Mapping[str, Any], network: Network, file: Path, unread_lines: list[str]) -> None:
        self.network = network
        self.lists: dict[str, list[str]] = {}
        for key in LIST_KEYS:
            value = tool_record.get(key, [])
            value = [value] if isinstance(value, str) else value if value is not None else []
            if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
                raise InputError(f"{file.name}: {key} is not a list of names",
                    "ModelOpt expects a list of strings there",
                                 "Correct the file.")
            self.lists[key] = value
        self._types = {key: frozenset(entries) for key, entries in self.lists.items()}
        self.patterns = {key: _compile_patterns(self.lists[key], key, file) for key in _PATTERN_KEYS}
        names = [layer.name for layer in network.layers]
        for key, entries in self.patterns.items():
            unread_lines += [
                f"{key} {entry.pattern!r}: no layer matches" for entry in entries if not any(map(entry.match, names))
            ]
        operators = {layer.op_type for layer in network.layers}
        main_operators = {network.get_layer(name).op_type for group in network.groups for name in group.main_layers}
        for key in (key for key in LIST_KEYS if key not in _PATTERN_KEYS):
            for entry in self.lists[key]:
                if entry not in operators:
                    unread_lines.append(f"{key} {entry!r}: no layer has this operator")
                elif entry not in main_operators:
                    unread_lines.append(f"{key} {entry!r}: it is fused with other layers, whose precision it takes")

    def find_excluded_groups(self) -> list[FusionGroup]:
        """Finds the groups with a main layer that ModelOpt excludes by name or operator."""
        return [group for group in self.network.groups
                if any(self._is_excluded_layer(name) for name in group.layers if name in group.main_layers)]

    def find_groups_by_operator_list(self, list_key: str) -> list[FusionGroup]:
        """Finds the groups with a main layer whose operator is in a list."""
        return [group for group in self.network.groups
                if any(self.network.get_layer(name).op_type in self.lists[list_key] for name in group.main_layers)]

    def _is_excluded_layer(self, layer_name: str) -> bool:
        operator, types = self.network.get_layer(layer_name).op_type, self._types

        def matches_any_pattern(key: str) -> bool:
            return any(pattern.match(layer_name) for pattern in self.patterns[key])

        if matches_any_pattern("nodes_to_include") or operator in types["op_types_to_include"]:
            return False
        return (matches_any_pattern("nodes_to_exclude") or operator in types["op_types_to_exclude"]
                or bool(types["op_types_to_quantize"]) and operator not in types["op_types_to_quantize"]
                or bool(types["nodes_to_quantize"]) and not matches_any_pattern("nodes_to_quantize"))


def _compile_patterns(pattern_texts: list[str], key: str, file: Path) -> list[re.Pattern[str]]:
    compiled_patterns = []
    for text in pattern_texts:
        try:
            compiled_patterns.append(re.compile(text))
        except re.error as error:
            raise InputError(f"{file.name}: {key} {text[:40]!r} is not a pattern", str(error),
                             "Correct the pattern; ModelOpt passes it to re.match.") from None
    return compiled_patterns
