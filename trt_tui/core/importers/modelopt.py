"""The importer of settings for NVIDIA ModelOpt: from JSON, YAML, a command line or a Python call.

The keys are the arguments of ``modelopt.onnx.quantization.quantize`` and ``modelopt.onnx.autocast`` of ModelOpt 0.47;
the options of their command lines have the same names. Names are patterns for ``re.match``, as in ModelOpt, so a
pattern also matches longer names. ``nodes_to_quantize`` and ``op_types_to_quantize`` exclude all other layers. In an
export of trt-tui, the entries ``quantize`` and ``autocast`` contain the arguments of the two tools. Python is read as
text and never run: arguments of a call are literals, or names of literals.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.importers.commands import (
    UNREADABLE_SCRIPT_ERRORS,
    expand_and_split_command,
    find_script_constants,
    iterate_shell_lines,
    parse_options,
    parse_script,
    read_literal,
    source_text,
)
from trt_tui.core.importers.imported_settings import ImportedSettings
from trt_tui.core.moves.config import convert_file_value
from trt_tui.core.network.fusion.attention import SCORES_ROLE, VALUES_ROLE
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

LIST_KEYS = (
    "nodes_to_exclude",
    "nodes_to_quantize",
    "op_types_to_exclude",
    "op_types_to_quantize",
    "op_types_to_exclude_fp16",
    "nodes_to_include",
    "op_types_to_include",
)
_PATTERN_KEYS = ("nodes_to_exclude", "nodes_to_quantize", "nodes_to_include")
_MODE_PRECISIONS = {
    "int8": Precision.INT8,
    "fp8": Precision.FP8,
    "int4": Precision.INT4,
    "int4_awq": Precision.INT4,
    "int4_awq_clip": Precision.INT4,
    "int4_rtn": Precision.INT4,
}
_FLOAT_PRECISIONS = {
    "fp32": Precision.FP32,
    "fp16": Precision.FP16,
    "bf16": Precision.BF16,
    "float16": Precision.FP16,
    "float32": Precision.FP32,
    "bfloat16": Precision.BF16,
}
MODELOPT_KEYS = frozenset((*LIST_KEYS, "quantize_mode", "low_precision_type"))
"""Keys by which a file of ModelOpt is recognised."""

_APPLIED, _NO_EFFECT, _NOT_IN_INT4 = "", "no precision settings", "ModelOpt ignores this in mode int4"
_DATA = "ranges are measured on the data of trt-tui"
_AUTOTUNE = "ModelOpt keeps Q/DQ only where its engine gains speed, so fewer layers are quantized than here"
_AWQ = "INT4 weights are rounded to nearest, without AWQ"
_GATHER = "tables of Gather keep their float type, which ModelOpt puts in INT4"
_PLUGINS, _PLUGIN_TYPES = "name the libraries with --plugins", "plugins keep the types of the file"
_LOGGED = "AutoCast keeps these nodes in FP32 and its log names them; here they take the lower precision"

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "quantize": {
        "onnx_path": _NO_EFFECT,
        "quantize_mode": _APPLIED,
        "calibration_data": _DATA,
        "calibration_method": _APPLIED,
        "calibration_cache_path": _APPLIED,
        "calibration_data_reader": _DATA,
        "calibration_shapes": _NO_EFFECT,
        "calibration_eps": _NO_EFFECT,
        "override_shapes": "the network keeps its sizes; a build takes them by --shapes",
        "op_types_to_quantize": _APPLIED,
        "op_types_to_exclude": _APPLIED,
        "op_types_to_exclude_fp16": _APPLIED,
        "nodes_to_quantize": _APPLIED,
        "nodes_to_exclude": _APPLIED,
        "use_external_data_format": _NO_EFFECT,
        "keep_intermediate_files": _NO_EFFECT,
        "output_path": _NO_EFFECT,
        "log_level": _NO_EFFECT,
        "log_file": _NO_EFFECT,
        "trt_plugins": _PLUGINS,
        "trt_plugins_precision": _PLUGIN_TYPES,
        "high_precision_dtype": _APPLIED,
        "mha_accumulation_dtype": "FP8 products are summed in FP32 here in any case",
        "disable_mha_qdq": _APPLIED,
        "dq_only": _NO_EFFECT,
        "block_size": "INT4 weights have blocks of 128 values here, or of 64 where 128 does not divide them; another "
        "block size changes their error",
        "use_zero_point": "INT4 weights have no zero points here",
        "passes": _NO_EFFECT,
        "simplify": "names of nodes that the simplification changes match no layer",
        "calibrate_per_node": _NO_EFFECT,
        "input_shapes_profile": _NO_EFFECT,
        "model_id": _NO_EFFECT,
        "trust_remote_code": _NO_EFFECT,
        "direct_io_types": "inputs and outputs keep the types of the network",
        "opset": _NO_EFFECT,
        "target_dla": "ModelOpt quantizes all tensors for a DLA, which loses more accuracy than is shown here",
        "autotune": _AUTOTUNE,
        "trt_rtx_backend": _NO_EFFECT,
        "calibration_data_path": _DATA,
        "trust_calibration_data": _NO_EFFECT,
        "enable_gemv_detection_for_trt": _APPLIED,
        "enable_shared_constants_duplication": _NO_EFFECT,
        "use_column_major": _NO_EFFECT,
        "gather_block_size": _GATHER,
        "gather_quantize_axis": _GATHER,
        "enable_mixed_quant": "ModelOpt puts some of the INT4 layers in INT8",
        "layers_8bit": "ModelOpt puts these layers in INT8; here they are in INT4",
        **dict.fromkeys(
            (
                "awqlite_alpha_step",
                "awqclip_alpha_step",
                "awqclip_alpha_min",
                "awqclip_bsz_col",
                "awqlite_run_per_subgraph",
                "awqlite_fuse_nodes",
            ),
            _AWQ,
        ),
        **{
            f"autotune_{name}": _NO_EFFECT
            for name in (
                "output_dir",
                "num_schemes_per_region",
                "schemes_per_region",
                "pattern_cache_file",
                "pattern_cache",
                "state_file",
                "qdq_baseline",
                "node_filter_list",
                "verbose",
                "use_trtexec",
                "timing_cache",
                "warmup_runs",
                "timing_runs",
                "trtexec_args",
            )
        },
    },
    "autocast": {
        "onnx_path": _NO_EFFECT,
        "low_precision_type": _APPLIED,
        "nodes_to_exclude": _APPLIED,
        "op_types_to_exclude": _APPLIED,
        "nodes_to_include": _APPLIED,
        "op_types_to_include": _APPLIED,
        "data_max": f"nodes with larger inputs or outputs: {_LOGGED}",
        "init_max": f"nodes with larger constants: {_LOGGED}",
        "keep_io_types": _NO_EFFECT,
        "calibration_data": "AutoCast compares values on these data with data_max",
        "custom_rule": _LOGGED,
        "init_conversion_max_bytes": _NO_EFFECT,
        "providers": _NO_EFFECT,
        "trt_plugins": _PLUGINS,
        "trt_plugins_precision": _PLUGIN_TYPES,
        "max_depth_of_reduction": f"nodes with longer sums: {_LOGGED}",
        "opset": _NO_EFFECT,
        "use_standalone_type_inference": _NO_EFFECT,
        "output_path": _NO_EFFECT,
        "log_level": _NO_EFFECT,
    },
}
"""The options of each tool, in the order of the arguments of its function, with the effect of an option that is not
applied; "" if it is applied."""

_DEFAULTS = {"block_size": "128", "mha_accumulation_dtype": "fp16", "data_max": "inf", "init_max": "inf"}
"""Values with which an option has no effect."""

_INT4_OPTIONS = ("quantize_mode", "nodes_to_exclude", "disable_mha_qdq", "high_precision_dtype")
"""The options of the quantizer that are applied in mode int4."""

_SHORT_OPTIONS = {
    "-t": "--low_precision_type",
    "-d": "--calibration_data",
    "-ne": "--nodes_to_exclude",
    "-ope": "--op_types_to_exclude",
    "-ni": "--nodes_to_include",
    "-opi": "--op_types_to_include",
}

_TOOLS = {"quantize": "quantize", "convert_to_mixed_precision": "autocast"}
"""The tool of each function."""

_OPERATORS_IN_ATTENTION = frozenset("MatMul Softmax Div Mul Add Reshape Transpose Flatten Cast".split())
"""The operators of an attention that ModelOpt recognises (`find_mha_partitions`)."""

_COMMAND_PATTERN = re.compile(
    r"^(?!\s*(?:#|import\b|from\b)).*\bmodelopt\.onnx\.(?:quantization|autocast)\b", re.MULTILINE
)


@dataclass(frozen=True)
class ModelOptCall:
    """A call or command of ModelOpt.

    Attributes:
        tool: ``quantize`` or ``autocast``.
        line_number: The line of the call, from 1.
        arguments: The values of the arguments by name.
    """

    tool: str
    line_number: int
    arguments: Mapping[str, Any]


def is_modelopt_record(record: Any) -> bool:
    """Returns True if a parsed JSON or YAML file contains arguments of ModelOpt."""
    tool_records = (record, record.get("quantize"), record.get("autocast")) if isinstance(record, Mapping) else ()
    return any(
        isinstance(tool_record, Mapping) and not MODELOPT_KEYS.isdisjoint(tool_record) for tool_record in tool_records
    )


def find_modelopt_commands(text: str, file: Path) -> list[ModelOptCall]:
    """Finds the command lines of ModelOpt's ONNX tools in a text; [] if there are none.

    Raises:
        InputError: A command line cannot be parsed.
    """
    calls: list[ModelOptCall] = []
    for line_number, line, values in iterate_shell_lines(text):
        if not _COMMAND_PATTERN.search(line):
            continue
        tool = "autocast" if "modelopt.onnx.autocast" in line else "quantize"
        words = expand_and_split_command(line, values, f"{file.name}, line {line_number}")
        arguments: dict[str, Any] = {}
        for name, entries in parse_options([_SHORT_OPTIONS.get(word, word) for word in words]).items():
            full_names = [option for option in _OPTIONS[tool] if option.startswith(name)]  # argparse abbreviates too
            key = full_names[0] if len(full_names) == 1 else name
            arguments[key] = entries if key in LIST_KEYS else entries[0] if entries else True
        calls.append(ModelOptCall(tool, line_number, arguments))
    return calls


def find_modelopt_calls(text: str, file: Path) -> list[ModelOptCall]:
    """Finds the calls of ModelOpt in a text; [] if there are none or if the text is not Python.

    Raises:
        InputError: A call has an argument with an effect on precisions that is not a literal.
    """
    if not any(f"{name}(" in text for name in _TOOLS):
        return []
    try:
        tree = parse_script(text)
    except UNREADABLE_SCRIPT_ERRORS:
        return []
    constants = find_script_constants(tree)
    calls = [
        (node, name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        if (name := source_text(node.func).rpartition(".")[2]) in _TOOLS
    ]
    return [
        _read_call(node, _TOOLS[name], constants, file)
        for node, name in calls
        if "modelopt" in text or not MODELOPT_KEYS.isdisjoint(keyword.arg or "" for keyword in node.keywords)
    ]


def _read_call(call: ast.Call, tool: str, constants: Mapping[str, Any], file: Path) -> ModelOptCall:
    positional = zip(_OPTIONS[tool], call.args, strict=False)
    arguments: dict[str, Any] = {}
    for name, expression in (*positional, *((keyword.arg, keyword.value) for keyword in call.keywords)):
        try:
            value = read_literal(expression, constants)
        except ValueError:
            if isinstance(expression, ast.Starred) or name is None or not _OPTIONS[tool].get(name):
                raise InputError(
                    f"{file.name}: an argument of {source_text(call.func)} is not a literal",
                    f"line {expression.lineno}: {name or '**'}: {source_text(expression)}",
                    "Write the names out, or name a JSON or YAML file with the arguments.",
                ) from None
            value = True
        arguments |= {name: value} if name is not None else value if isinstance(value, Mapping) else {}
    return ModelOptCall(
        tool,
        call.lineno,
        {key: list(value) if isinstance(value, tuple | set) else value for key, value in arguments.items()},
    )


def read_modelopt_calls(calls: Sequence[ModelOptCall], network: Network, file: Path) -> ImportedSettings:
    """Reads the settings in calls or commands of ModelOpt.

    If a tool is called several times, the call with the most names in its lists is used.

    Raises:
        InputError: An argument has the wrong type or an unknown value.
    """

    def count_entries(call: ModelOptCall) -> int:
        return sum(len(value) for key, value in call.arguments.items() if key in LIST_KEYS and isinstance(value, list))

    used_calls = {
        tool: max((call for call in calls if call.tool == tool), key=count_entries)
        for tool in dict.fromkeys(call.tool for call in calls)
    }
    settings = read_modelopt_record({tool: call.arguments for tool, call in used_calls.items()}, network, file)
    settings.notes += [
        f"line {name_list_text(other_lines)} is another call; line {call.line_number} is used"
        for call in used_calls.values()
        if (other_lines := [str(other.line_number) for other in calls if other.tool == call.tool and other is not call])
    ]
    return settings


def read_modelopt_record(record: Mapping[str, Any], network: Network, file: Path) -> ImportedSettings:
    """Reads the settings in a record with the arguments of ModelOpt.

    Raises:
        InputError: An entry has the wrong type or an unknown value.
    """
    tool_records = {tool: dict(record[tool]) for tool in _OPTIONS if isinstance(record.get(tool), Mapping)}
    if not tool_records:
        is_autocast = "low_precision_type" in record and "quantize_mode" not in record
        tool_records = {"autocast" if is_autocast else "quantize": dict(record)}
    settings = ImportedSettings("ModelOpt options")
    settings.restore_omitted_settings(record.get(f"_{OMISSION_MARKER}"))
    settings.tf32 = record.get("_tf32") is True
    settings.unread_lines += [
        line for tool, options in tool_records.items() for line in _unread_option_lines(tool, options)
    ]
    quantize_record, autocast_record = tool_records.get("quantize"), tool_records.get("autocast")
    low_precision = None
    fp32_groups: set[str] = set()
    if autocast_record is not None:
        low_precision = _read_precision(autocast_record, "low_precision_type", _FLOAT_PRECISIONS, Precision.FP16, file)
        lists = _ModelOptNameLists(autocast_record, network, file, settings.unread_lines)
        fp32_groups |= {group.name for group in lists.find_excluded_groups()}
        if "data_max" not in autocast_record and "_usage" not in record:
            settings.notes.append(f"nodes with inputs or outputs above 512, the default of data_max: {_LOGGED}")
    if quantize_record is None:
        settings.quantized = settings.other = low_precision or Precision.FP16
        settings.layer_precisions = dict.fromkeys(fp32_groups, Precision.FP32)
        return settings
    settings.quantized = _read_precision(quantize_record, "quantize_mode", _MODE_PRECISIONS, Precision.INT8, file)
    settings.other = low_precision or _read_precision(
        quantize_record, "high_precision_dtype", _FLOAT_PRECISIONS, Precision.FP16, file
    )
    lists = _ModelOptNameLists(quantize_record, network, file, settings.unread_lines)
    unquantized_groups = {group.name for group in lists.find_excluded_groups()}
    if quantize_record.get("disable_mha_qdq") and not quantize_record.get("target_dla"):
        unquantized_groups |= _find_groups_of_attention_products(network)
    if settings.other is not Precision.FP32:
        fp32_groups |= {group.name for group in lists.find_groups_excluded_from_fp16()}
    _set_layer_precisions(settings, network, unquantized_groups, fp32_groups)
    if quantize_record.get("enable_gemv_detection_for_trt") is not False:
        settings.notes.append(
            "ModelOpt leaves out more layers by its own rules, such as products with one row or "
            "column and Convs of few channels; its log names them, and here they are quantized"
        )
    _read_calibration(settings, quantize_record, file)
    return settings


def _unread_option_lines(tool: str, options: dict[str, Any]) -> list[str]:
    """Returns a line for each effect of the options that are not imported. Options without an effect are removed.

    An entry whose name begins with an underscore is for trt-tui.
    """
    effects: dict[str, list[str]] = {}
    is_int4 = tool == "quantize" and _MODE_PRECISIONS.get(str(options.get("quantize_mode"))) is Precision.INT4
    for name, value in list(options.items()):
        effect = _OPTIONS[tool].get(name, "not an option of ModelOpt 0.47")
        if is_int4 and name in LIST_KEYS and name not in _INT4_OPTIONS:
            effect = _NOT_IN_INT4
            del options[name]
        if (
            effect
            and not str(name).startswith("_")
            and value not in (None, False)
            and (str(value).lower() != _DEFAULTS.get(name))
        ):
            effects.setdefault(effect, []).append(str(name))
    return [f"{name_list_text(sorted(names), 8)}: {effect}" for effect, names in effects.items()]


def _read_calibration(settings: ImportedSettings, options: Mapping[str, Any], file: Path) -> None:
    """Reads the calibration cache. If ModelOpt would choose the scales by another method, it adds a note."""
    method = options.get("calibration_method")
    if settings.quantized is Precision.INT4:
        if method is None or "rtn" not in str(method):
            settings.notes.append(f"ModelOpt chooses INT4 scales by {str(method or 'awq_clip')[:40]}; here {_AWQ}")
    elif isinstance(cache := options.get("calibration_cache_path"), str) and cache:
        settings.cache_path = file.parent / cache
    elif method in (None, "entropy") and settings.quantized is Precision.INT8:
        settings.notes.append("ModelOpt calibrates by entropy here; --calib-method entropy does so too")
    elif method not in (None, "entropy", "max", "minmax"):
        settings.unread_lines.append(
            f"calibration_method {str(method)[:40]!r}: the ranges are measured by --calib-method"
        )


def _find_groups_of_attention_products(network: Network) -> set[str]:
    """Finds the groups of the products of each attention that ModelOpt recognises too."""
    operators = collect_by_key(
        (group.attention, network.get_layer(name).op_type) for group in network.groups for name in group.layers
    )
    return {
        group.name
        for group in network.groups
        if group.attention_role in (SCORES_ROLE, VALUES_ROLE)
        and _OPERATORS_IN_ATTENTION.issuperset(operators[group.attention])
    }


def _read_precision(
    tool_record: Mapping[str, Any], key: str, precisions: Mapping[str, Precision], default: Precision, file: Path
) -> Precision:
    value = tool_record.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or value not in precisions:
        raise InputError(
            f"{file.name}: {key} is {str(value)[:40]!r}", f"available: {', '.join(precisions)}", "Correct the file."
        )
    return precisions[value]


def _set_layer_precisions(
    settings: ImportedSettings, network: Network, unquantized_groups: set[str], fp32_groups: set[str]
) -> None:
    """Sets the precision of each layer that ModelOpt does not quantize.

    Args:
        unquantized_groups: The groups without Q/DQ.
        fp32_groups: The groups that stay in FP32, or have FP32 at their boundary if they are quantized.
    """
    quantized = [
        group.name
        for group in network.groups
        if settings.quantized in group.allowed_precisions and group.name not in unquantized_groups
    ]
    fp32_bounded = [name for name in quantized if name in fp32_groups]
    low_precision = settings.other
    if fp32_bounded and len(fp32_bounded) == len(quantized):
        settings.other = Precision.FP32
    elif fp32_bounded:
        settings.unread_lines.append(
            f"FP32 around {name_list_text(fp32_bounded, 3)}: around layers in {settings.quantized.label} the precision "
            f"is {low_precision.label}, as for most of them"
        )
    for group in network.groups:
        if group.name not in quantized:
            settings.layer_precisions[group.name] = Precision.FP32 if group.name in fp32_groups else low_precision


class _ModelOptNameLists:
    """The lists of layer names and operators in the arguments of a ModelOpt tool.

    Raises:
        InputError: An entry has the wrong type.
    """

    def __init__(self, tool_record: Mapping[str, Any], network: Network, file: Path, unread_lines: list[str]) -> None:
        self.network = network
        self.lists = {
            key: convert_file_value(
                [value] if isinstance(value, str) else [] if value is None else value, list[str], file.name, key
            )
            for key in LIST_KEYS
            for value in [tool_record.get(key)]
        }
        self.patterns = {key: [_compile_pattern(text, key, file) for text in self.lists[key]] for key in _PATTERN_KEYS}
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
        """Finds the groups whose main layer ModelOpt excludes by name or operator."""
        return [
            group
            for group in self.network.groups
            if any(self._is_excluded_layer(name) for name in group.layers if name in group.main_layers)
        ]

    def find_groups_excluded_from_fp16(self) -> list[FusionGroup]:
        """Finds the groups whose main layer has an operator that ModelOpt excludes from FP16."""
        return [
            group
            for group in self.network.groups
            if any(
                self.network.get_layer(name).op_type in self.lists["op_types_to_exclude_fp16"]
                for name in group.main_layers
            )
        ]

    def _is_excluded_layer(self, layer_name: str) -> bool:
        operator, types = self.network.get_layer(layer_name).op_type, self.lists

        def matches_any_pattern(key: str) -> bool:
            return any(pattern.match(layer_name) for pattern in self.patterns[key])

        is_included = matches_any_pattern("nodes_to_include") or operator in types["op_types_to_include"]
        return not is_included and (
            matches_any_pattern("nodes_to_exclude")
            or operator in types["op_types_to_exclude"]
            or bool(types["op_types_to_quantize"])
            and operator not in types["op_types_to_quantize"]
            or bool(types["nodes_to_quantize"])
            and not matches_any_pattern("nodes_to_quantize")
        )


def _compile_pattern(text: str, key: str, file: Path) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError(
            f"{file.name}: {key} {text[:40]!r} is not a pattern",
            str(error),
            "Correct the pattern; ModelOpt passes it to re.match.",
        ) from None
