"""The layers that NVIDIA ModelOpt is to quantize and to leave out, as patterns that match exactly them.

ModelOpt's ONNX quantizer leaves out every node for which ``re.match(pattern, node.name)`` holds
(``expand_node_names_from_patterns`` in ``modelopt/onnx/quantization/graph_utils.py``), and AutoCast keeps those in high
precision (``DisabledNodeNameRegexRule`` in ``modelopt/onnx/autocast/nodeclassifier.py``). ``re.match`` looks at the
start of a name only, so that ``conv1`` hits ``conv10`` too; ``$`` at the end keeps to the whole name, but matches
before a last line break too, and stands as ``\\Z`` where that would hit another node.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.lowering.releases import asked_codes
from trt_tui.core.lowering.rules import surrounding
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.network.troubles import narrow
from trt_tui.core.precision import FLOATS, Precision
from trt_tui.core.production import NOT_TOLD
from trt_tui.errors import InputError
from trt_tui.files.writing import write_atomic
from trt_tui.words import first_few, plural

_METHODS = {"entropy": "entropy", "minmax": "max"}
"""Our calibration methods that ModelOpt's quantizer has, by its names."""


@dataclass(frozen=True)
class Exclusions:
    """Layers that ModelOpt leaves out, by name.

    Attributes:
        int8: Layers that the config runs in INT8 and that carry Q/DQ.
        quantize: Layers that get no INT8: all but those whose group the config runs in INT8.
        autocast: Layers that stay in FP32: those whose group runs in FP32, or in INT8 with FP32 around it.
        low_precision: What AutoCast casts the rest to, FP16 before BF16; None where the config has no such layer.
        recast: Groups that the config runs in BF16, or in INT8 with BF16 around, and that ModelOpt casts to FP16.
    """

    int8: tuple[str, ...]
    quantize: tuple[str, ...]
    autocast: tuple[str, ...]
    low_precision: Precision | None
    recast: tuple[str, ...] = ()


def exclusions(network: Network, config: PrecisionConfig) -> Exclusions:
    """The layers to leave out. Folded layers (constants, shapes, integers, casts) are on neither list."""
    assignment = config.assignment(network)
    int8, quantize, autocast, floats = [], [], [], dict[str, Precision]()
    for layer in network.layers:
        group = network.group_of(layer.name)
        if group is None:
            continue
        precision = assignment[group.name]
        if precision is not Precision.INT8:
            quantize.append(layer.name)
        elif any(site.layer == layer.name and site.role != "skip" for site in group.sites):
            int8.append(layer.name)
        around = surrounding(group, precision, config.other)
        if around is Precision.FP32:
            autocast.append(layer.name)
        floats[group.name] = around
    lower = [one for one in FLOATS if one in floats.values() and one is not Precision.FP32]
    return Exclusions(tuple(int8), tuple(quantize), tuple(autocast), lower[-1] if lower else None,
                      tuple(name for name, one in floats.items() if one in lower[:-1]))


def patterns(names: Iterable[str], every: Collection[str]) -> list[str]:
    """Patterns that ``re.match`` finds in these of all names and in no other."""
    every = set(every)
    return [re.escape(name) + (r"\Z" if f"{name}\n" in every else "$") for name in names]


def refuse_modelopt(network: Network, config: PrecisionConfig) -> None:
    """Checks that a config can be told to ModelOpt.

    Raises:
        InputError: it has layers in FP8 or INT4, or products summed in FP32.
    """
    for precision, groups in asked_codes(network, config).items():
        if precision is not Precision.INT8:
            raise InputError(f"the file for ModelOpt tells no {precision.label}, which this config has",
                             f"{plural(len(groups), 'layer')}, {groups[0]} first; ModelOpt quantizes a network in one "
                             "mode, and casts all of a layer",
                             "Write the typed network (--format onnx), or put them in INT8 or FP16.")


def modelopt_record(network: Network, config: PrecisionConfig, model: str = "model.onnx", method: str = "",
                    cache: str = "", left_out: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the file holds: the arguments of each of the two tools, and the Python that uses them.

    Args:
        model: File name of the network whose nodes bear the config's names.
        method: How the config's ranges were measured; the quantizer is told the same where it knows it.
        cache: File name of the ranges as a TensorRT calibration cache, "" without.
        left_out: What the lists lack of the config, see `trt_tui.core.exporters.left_out`.
    """
    out = exclusions(network, config)
    every = {layer.name for layer in network.layers}
    int8, quantize, autocast = (patterns(names, every) for names in (out.int8, out.quantize, out.autocast))
    stem = Path(model).stem
    usage = ["import json", 'lists = json.load(open("THIS_FILE.json"))']
    notes = ["Patterns are matched by re.match against the node names of the network that is written beside this file; "
             "TF32 is " + ("left on" if config.tf32 else "off: build the result with trtexec --noTF32") + "."]
    source, record = model, dict[str, Any]()
    casts = bool(out.autocast) and out.low_precision is not None
    if out.int8 or out.low_precision is None:
        # With high_precision_dtype="fp32" the quantizer casts nothing, so that AutoCast's list decides.
        other = "fp32" if casts or out.low_precision is None else out.low_precision.value
        record["quantize"] = {
            "quantize_mode": "int8", "calibration_method": _METHODS.get(method, "max"),
            **({"calibration_cache_path": cache} if cache else {}), "high_precision_dtype": other,
            "enable_gemv_detection_for_trt": False, "nodes_to_quantize": int8, "nodes_to_exclude": quantize}
    if out.int8:
        target = f"{stem}.int8.onnx" if casts else f"{stem}.typed.onnx"
        usage += ["from modelopt.onnx.quantization import quantize",
                  f'quantize({source!r}, calibration_data=DATA, output_path={target!r}, **lists["quantize"])']
        source = target
        notes += _notes(network, config, out, method, cache)
    if casts or not out.int8 and out.low_precision is not None:
        assert out.low_precision is not None
        record["autocast"] = {"low_precision_type": out.low_precision.value, "keep_io_types": True,
                              "nodes_to_exclude": autocast}
        usage += ["import onnx", "from modelopt.onnx.autocast import convert_to_mixed_precision",
                  f'typed = convert_to_mixed_precision({source!r}, data_max=float("inf"), **lists["autocast"])',
                  f'onnx.save(typed, {f"{stem}.typed.onnx"!r})']
        notes.append("AutoCast has rules of its own beside the list; data_max=inf turns off the one by value.")
    if out.recast:
        said = f"{plural(len(out.recast), 'row')} in BF16 become FP16, since ModelOpt casts to one type: " \
               f"{first_few(out.recast, 3)}"
        notes.append(f"{said}.")
        left_out = {**(left_out or {}), "moves": [*(left_out or {}).get("moves", ()), said]}
    return {**record, "_tf32": config.tf32, **({f"_{NOT_TOLD}": left_out} if left_out else {}), "_usage": usage,
            "_notes": notes}


def _notes(network: Network, config: PrecisionConfig, out: Exclusions, method: str, cache: str) -> list[str]:
    """What to know of the quantizer's part."""
    notes = []
    if cache:
        notes.append(f"{cache} holds the config's ranges; they take the place of those that ModelOpt measures, so that "
                     "DATA may be a few samples.")
        tensors = {site.tensor for group in network.groups for site in group.activations()
                   if site.layer in set(out.int8)}
        if torn := sorted(name for name in tensors if "_scale" in name or ": " in name):
            notes.append("ModelOpt cannot read the ranges of names that hold '_scale' or ': ', and leaves out the "
                         f"layers that read {', '.join(torn)}.")
    elif method and method not in _METHODS:
        notes.append(f"ModelOpt has no {method} calibration; give it these ranges as a calibration cache.")
    if reasons := narrow(network.graph, map(network.layer, out.int8)):
        listed = ", ".join(f"{name} ({why})" for name, why in reasons.items())
        notes.append(f"ModelOpt does not quantize some layers that the config has in INT8: {listed}. The typed ONNX "
                     "export does.")
    skips = [group.name for group in network.groups if config.precision_of(group) is Precision.INT8
             and any(site.role == "skip" for site in group.sites)]
    if skips:
        notes.append("ModelOpt's list gives the other input of a residual Add no Q/DQ; the typed ONNX export has them.")
    if corrected := config.of(BiasCorrection):
        notes.append(f"{len(corrected)} corrected biases are left out: they make up for the codes of the typed ONNX "
                     "export, which has them.")
    notes.append("MatMuls of attention over more than 512 tokens are left out whatever is asked.")
    return notes


def write_modelopt(path: Path | str, network: Network, config: PrecisionConfig, model: str = "model.onnx",
                   method: str = "", cache: str = "", left_out: Mapping[str, Any] | None = None) -> None:
    """Writes `modelopt_record` as JSON; the file is whole or not there.

    Raises:
        InputError: the file cannot be written.
    """
    record = modelopt_record(network, config, model, method, cache, left_out)
    name = json.dumps(Path(path).name)
    record["_usage"] = [line.replace('"THIS_FILE.json"', name) for line in record["_usage"]]
    write_atomic(path, json.dumps(record, indent=1) + "\n")
