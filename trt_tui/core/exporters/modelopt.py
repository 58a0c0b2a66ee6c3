r"""The export for NVIDIA ModelOpt: lists of layers to quantize and to leave out, as patterns for exactly these layers.

ModelOpt's ONNX quantizer leaves out every node for which ``re.match(pattern, node.name)`` holds
(``expand_node_names_from_patterns`` in ``modelopt/onnx/quantization/graph_utils.py``). AutoCast keeps such nodes in
high precision (``DisabledNodeNameRegexRule`` in ``modelopt/onnx/autocast/nodeclassifier.py``). ``re.match`` compares
only the start of a name, so ``conv1`` also matches ``conv10``. A ``$`` at the end requires the whole name, but also
matches before a final line break. If that would match another node, the pattern ends in ``\Z``.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.calibration.cache import calibration_algorithm, write_calibration_cache
from trt_tui.core.exporters.formats import ExportContext, WrittenExport, omission_record
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.lowering.network_rewrite import (
    config_barrier_notes,
    groups_by_release_dependent_precision,
    replace_all_file_precisions,
)
from trt_tui.core.lowering.rulebook import compute_activation_ranges, find_boundary_type
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_MOVE_CLASSES
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.network.known_defects import excluded_conv_reason
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import counted_noun_text, name_list_text

_CALIBRATION_METHODS = {"entropy": "entropy", "minmax": "max"}
"""ModelOpt's name of each range method that its quantizer has too."""


@dataclass(frozen=True)
class ModelOptExclusions:
    """The names of the layers that ModelOpt must quantize, leave out or keep in FP32 for a config.

    Attributes:
        quantized_layers: Layers that the config runs in INT8 and that have Q/DQ.
        unquantized_layers: Layers whose group the config does not run in INT8.
        fp32_layers: Layers that stay in FP32: their group runs in FP32, or in INT8 with FP32 at its boundary.
        low_precision: The type to which AutoCast casts the other layers, FP16 before BF16; None if there are none.
        recast_groups: Groups that ModelOpt casts to FP16, although the config runs them in BF16, or in INT8 with BF16
            at the boundary.
    """

    quantized_layers: tuple[str, ...]
    unquantized_layers: tuple[str, ...]
    fp32_layers: tuple[str, ...]
    low_precision: Precision | None
    recast_groups: tuple[str, ...] = ()


def find_modelopt_exclusions(network: Network, config: PrecisionConfig) -> ModelOptExclusions:
    """Finds the layers that ModelOpt must quantize, leave out or keep in FP32.

    The lists contain no constants, shape arithmetic, integers or Casts.
    """
    assignment = config.precision_by_group(network)
    quantized_layers, unquantized_layers, fp32_layers, boundary_by_group = [], [], [], dict[str, Precision]()
    for layer in network.layers:
        group = network.find_group(layer.name)
        if group is None:
            continue
        precision = assignment[group.name]
        if precision is not Precision.INT8:
            unquantized_layers.append(layer.name)
        elif any(site.layer == layer.name and site.role != "skip" for site in group.sites):
            quantized_layers.append(layer.name)
        boundary = find_boundary_type(group, precision, config.other)
        if boundary is Precision.FP32:
            fp32_layers.append(layer.name)
        boundary_by_group[group.name] = boundary
    low_types = [
        float_type
        for float_type in FLOAT_PRECISIONS
        if float_type in boundary_by_group.values() and float_type is not Precision.FP32
    ]
    return ModelOptExclusions(
        tuple(quantized_layers),
        tuple(unquantized_layers),
        tuple(fp32_layers),
        low_types[-1] if low_types else None,
        tuple(name for name, float_type in boundary_by_group.items() if float_type in low_types[:-1]),
    )


def build_name_patterns(names: Iterable[str], all_names: Collection[str]) -> list[str]:
    """Builds a pattern for each given name, with which ``re.match`` matches no other name of the network."""
    all_names = set(all_names)
    return [re.escape(name) + (r"\Z" if f"{name}\n" in all_names else "$") for name in names]


def check_modelopt_config(network: Network, config: PrecisionConfig) -> None:
    """Refuses a config with precisions that ModelOpt does not support.

    Raises:
        InputError: The config has layers in a quantized type other than INT8, or products with an FP32 accumulator.
    """
    for precision, groups in groups_by_release_dependent_precision(network, config).items():
        if precision is not Precision.INT8:
            raise InputError(
                f"the file for ModelOpt cannot contain {precision.label}, which this config has",
                f"{counted_noun_text(len(groups), 'layer')}, {groups[0]} first; ModelOpt quantizes a network in one "
                "mode, and casts whole layers",
                "Write the typed network (--format onnx), or put them in INT8 or FP16.",
            )


def modelopt_record(
    network: Network,
    config: PrecisionConfig,
    model_file: str = "model.onnx",
    range_method: str = "",
    cache_file: str = "",
    omissions: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of the ModelOpt export: arguments of its quantizer and of AutoCast, and Python code that
    calls them.

    Args:
        model_file: File name of the network whose nodes have the names in the config.
        range_method: The method of the config's ranges. The quantizer receives the same method if it supports it.
        cache_file: File name of the ranges as a TensorRT calibration cache; "" if there is none.
        omissions: The parts of the config that the lists do not contain; see `trt_tui.core.exporters.formats`.
    """
    exclusions = find_modelopt_exclusions(network, config)
    all_names = {layer.name for layer in network.layers}
    quantized_patterns, unquantized_patterns, fp32_patterns = (
        build_name_patterns(names, all_names)
        for names in (exclusions.quantized_layers, exclusions.unquantized_layers, exclusions.fp32_layers)
    )
    stem = Path(model_file).stem
    usage = ["import json", 'lists = json.load(open("THIS_FILE.json"))']
    notes = [
        "Patterns are matched by re.match against the node names of the network that is written beside this file; "
        "TF32 is " + ("left on" if config.tf32 else "off: build the result with trtexec --noTF32") + "."
    ]
    input_file, record = model_file, dict[str, Any]()
    runs_autocast = bool(exclusions.fp32_layers) and exclusions.low_precision is not None
    if exclusions.quantized_layers or exclusions.low_precision is None:
        # With high_precision_dtype="fp32" the quantizer casts nothing, so the list for AutoCast decides.
        high_precision = "fp32" if runs_autocast or exclusions.low_precision is None else exclusions.low_precision.value
        record["quantize"] = {
            "quantize_mode": "int8",
            "calibration_method": _CALIBRATION_METHODS.get(range_method, "max"),
            **({"calibration_cache_path": cache_file} if cache_file else {}),
            "high_precision_dtype": high_precision,
            "enable_gemv_detection_for_trt": False,
            "nodes_to_quantize": quantized_patterns,
            "nodes_to_exclude": unquantized_patterns,
        }
    if exclusions.quantized_layers:
        output_file = f"{stem}.int8.onnx" if runs_autocast else f"{stem}.typed.onnx"
        usage += [
            "from modelopt.onnx.quantization import quantize",
            f'quantize({input_file!r}, calibration_data=DATA, output_path={output_file!r}, **lists["quantize"])',
        ]
        input_file = output_file
        notes += _quantizer_notes(network, config, exclusions, range_method, cache_file)
    if runs_autocast or not exclusions.quantized_layers and exclusions.low_precision is not None:
        assert exclusions.low_precision is not None
        record["autocast"] = {
            "low_precision_type": exclusions.low_precision.value,
            "keep_io_types": True,
            "nodes_to_exclude": fp32_patterns,
        }
        usage += [
            "import onnx",
            "from modelopt.onnx.autocast import convert_to_mixed_precision",
            f'typed = convert_to_mixed_precision({input_file!r}, data_max=float("inf"), **lists["autocast"])',
            f"onnx.save(typed, {f'{stem}.typed.onnx'!r})",
        ]
        notes.append("AutoCast also has its own rules; data_max=inf turns off the rule by value.")
    if exclusions.recast_groups:
        recast_text = (
            f"{counted_noun_text(len(exclusions.recast_groups), 'row')} in BF16 become FP16, since ModelOpt casts to "
            f"one type: "
            f"{name_list_text(exclusions.recast_groups, 3)}"
        )
        notes.append(f"{recast_text}.")
        omissions = {**(omissions or {}), "moves": [*(omissions or {}).get("moves", ()), recast_text]}
    return {
        **record,
        "_tf32": config.tf32,
        **({f"_{OMISSION_MARKER}": omissions} if omissions else {}),
        "_usage": usage,
        "_notes": notes,
    }


def _quantizer_notes(
    network: Network, config: PrecisionConfig, exclusions: ModelOptExclusions, range_method: str, cache_file: str
) -> list[str]:
    """Returns notes for the user on the arguments of ModelOpt's quantizer."""
    notes = []
    if cache_file:
        notes.append(
            f"{cache_file} holds the config's ranges; they replace the ranges that ModelOpt measures, so a few samples "
            "suffice as DATA."
        )
        tensors = {
            site.tensor
            for group in network.groups
            for site in group.activation_qdq_sites()
            if site.layer in set(exclusions.quantized_layers)
        }
        if unreadable_tensors := sorted(name for name in tensors if "_scale" in name or ": " in name):
            notes.append(
                "ModelOpt cannot read the ranges of names that hold '_scale' or ': ', and leaves out the "
                f"layers that read {', '.join(unreadable_tensors)}."
            )
    elif range_method and range_method not in _CALIBRATION_METHODS:
        notes.append(f"ModelOpt has no {range_method} calibration; give it these ranges as a calibration cache.")
    if excluded_texts := [
        f"{layer.name} ({reason})"
        for layer in map(network.get_layer, exclusions.quantized_layers)
        if (reason := excluded_conv_reason(network.graph, layer))
    ]:
        layers_text = ", ".join(excluded_texts)
        notes.append(
            f"ModelOpt does not quantize some layers that the config has in INT8: {layers_text}. The typed network "
            "export does."
        )
    skip_groups = [
        group.name
        for group in network.groups
        if config.precision_of(group) is Precision.INT8 and any(site.role == "skip" for site in group.sites)
    ]
    if skip_groups:
        notes.append("ModelOpt's list gives the other input of a residual Add no Q/DQ; the typed network has them.")
    notes += [
        kind.omission_text.format(count=len(moves))
        for move_class, kind in ZERO_COST_MOVE_CLASSES.items()
        if kind.omission_text and (moves := config.get_moves(move_class))
    ]
    notes.append("MatMuls of attention over more than 512 tokens are always left out.")
    return notes


def write_modelopt_record(
    path: Path | str,
    network: Network,
    config: PrecisionConfig,
    model_file: str = "model.onnx",
    range_method: str = "",
    cache_file: str = "",
    omissions: Mapping[str, Any] | None = None,
) -> None:
    """Writes `modelopt_record` as a JSON file, completely or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    record = modelopt_record(network, config, model_file, range_method, cache_file, omissions)
    name = json.dumps(Path(path).name)
    record["_usage"] = [line.replace('"THIS_FILE.json"', name) for line in record["_usage"]]
    write_file_atomically(path, json.dumps(record, indent=1) + "\n")


def write_modelopt_export(context: ExportContext) -> WrittenExport:
    """Writes the lists for ModelOpt, the FP32 network that it quantizes and, if there are ranges, the calibration
    cache.
    """
    path, network = context.path, context.network
    base_path, cache_path = context.companion_paths["base"], context.companion_paths["cache"]
    config = replace_all_file_precisions(network, context.config)
    check_modelopt_config(network, config)
    base_model = lower_from_source_model(network, _derive_fp32_config(config), {}).model
    written_model = export_typed_network(base_model, network, base_path)
    used_ranges = compute_activation_ranges(network, context.ranges, config)
    cache_paths = [cache_path] if used_ranges else []
    if used_ranges:
        write_calibration_cache(cache_path, used_ranges, calibration_algorithm(context.calibration.method))
    write_modelopt_record(
        path,
        network,
        config,
        base_path.name,
        context.calibration.method,
        cache_path.name if used_ranges else "",
        omission_record(network, context.config, base_path.name, used_ranges),
    )
    return WrittenExport(
        [path, written_model.path, *written_model.data_files, *cache_paths],
        config_barrier_notes(network, context.config),
    )


def _derive_fp32_config(config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in FP32 with the exact zero-cost moves and the fusion barriers of another config."""
    fp32_config = PrecisionConfig.from_precision(Precision.FP32)
    exact_classes = (move_class for move_class, kind in ZERO_COST_MOVE_CLASSES.items() if not kind.omission_text)
    move_classes: tuple[type[Move], ...] = (*exact_classes, BarrierMove)
    for move_class in move_classes:
        fp32_config = fp32_config.with_moves(config.get_moves(move_class))
    return fp32_config
