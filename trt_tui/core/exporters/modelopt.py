"""The layers that NVIDIA ModelOpt is to leave out, as patterns that match exactly them.

ModelOpt's ONNX quantizer leaves out every node for which ``re.match(pattern, node.name)`` holds
(``expand_node_names_from_patterns`` in ``modelopt/onnx/quantization/graph_utils.py``), and AutoCast keeps those in high
precision (``DisabledNodeNameRegexRule`` in ``modelopt/onnx/autocast/nodeclassifier.py``). ``re.match`` looks at the
start of a name only, so that ``conv1`` hits ``conv10`` too; ``$`` at the end keeps to the whole name, but matches
before a last line break too, and stands as ``\\Z`` where that would hit another node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.lowering.rules import surrounding
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOATS, Precision
from trt_tui.files.writing import write_atomic

_METHODS = {"entropy": "entropy", "minmax": "max"}
"""Our calibration methods that ModelOpt's quantizer has, by its names."""


@dataclass(frozen=True)
class Exclusions:
    """Layers that ModelOpt leaves out, by name.

    Attributes:
        quantize: Layers that get no INT8: all but those whose group the config runs in INT8.
        autocast: Layers that stay in FP32: those whose group runs in FP32, or in INT8 with FP32 around it.
        low_precision: What AutoCast casts the rest to, FP16 before BF16; None where the config has no such layer.
    """

    quantize: tuple[str, ...]
    autocast: tuple[str, ...]
    low_precision: Precision | None


def exclusions(network: Network, config: PrecisionConfig) -> Exclusions:
    """The layers to leave out. Folded layers (constants, shapes, integers, casts) are on neither list."""
    assignment = config.assignment(network)
    quantize, autocast, floats = [], [], set()
    for layer in network.layers:
        group = network.group_of(layer.name)
        if group is None:
            continue
        precision = assignment[group.name]
        if precision is not Precision.INT8:
            quantize.append(layer.name)
        around = surrounding(group, precision, config.other)
        if around is Precision.FP32:
            autocast.append(layer.name)
        floats.add(around)
    lower = [precision for precision in FLOATS if precision in floats and precision is not Precision.FP32]
    return Exclusions(tuple(quantize), tuple(autocast), lower[-1] if lower else None)


def patterns(names: Iterable[str], every: Collection[str]) -> list[str]:
    """Patterns that ``re.match`` finds in these of all names and in no other."""
    every = set(every)
    return [re.escape(name) + (r"\Z" if f"{name}\n" in every else "$") for name in names]


def modelopt_record(network: Network, config: PrecisionConfig, model: str = "model.onnx",
                    method: str = "") -> dict[str, Any]:
    """What the file holds: a list for each of the two tools, and the Python that uses them.

    Args:
        model: File name of the network whose nodes bear the config's names.
        method: How the config's ranges were measured; the quantizer is told the same where it knows it.
    """
    out = exclusions(network, config)
    every = {layer.name for layer in network.layers}
    quantize, autocast = patterns(out.quantize, every), patterns(out.autocast, every)
    calibration = f', calibration_method="{_METHODS[method]}"' if method in _METHODS else ""
    stem = Path(model).stem
    usage = ["import json", 'lists = json.load(open("THIS_FILE.json"))']
    notes = ["Patterns are matched by re.match against the node names of the network that trt-tui exports; "
             "TF32 is " + ("left on" if config.tf32 else "off: build the result with trtexec --noTF32") + "."]
    source = model
    if any(precision is Precision.INT8 for precision in config.assignment(network).values()):
        other = {Precision.FP16: "fp16", Precision.BF16: "bf16"}.get(config.other, "fp32")
        # With high_precision_dtype="fp32" the quantizer casts nothing, so that AutoCast's list decides.
        usage += ["from modelopt.onnx.quantization import quantize",
                  f'quantize({source!r}, quantize_mode="int8"{calibration}, calibration_data=DATA, '
                  'high_precision_dtype="fp32",',
                  f'         output_path={f"{stem}.int8.onnx"!r}, **lists["quantize"])']
        source = f"{stem}.int8.onnx"
        notes.append(f"Around INT8 layers the config has {other}.")
    if out.low_precision is not None:
        usage += ["import onnx", "from modelopt.onnx.autocast import convert_to_mixed_precision",
                  f'typed = convert_to_mixed_precision({source!r}, low_precision_type="{out.low_precision.value}", '
                  'keep_io_types=True,',
                  '                                   data_max=float("inf"), **lists["autocast"])',
                  f'onnx.save(typed, {f"{stem}.typed.onnx"!r})']
        notes.append("AutoCast has rules of its own beside the list; data_max=inf turns off the one by value.")
    return {"quantize": {"nodes_to_exclude": quantize}, "autocast": {"nodes_to_exclude": autocast},
            "_usage": usage, "_notes": notes}


def write_modelopt(path: Path | str, network: Network, config: PrecisionConfig, model: str = "model.onnx",
                   method: str = "") -> None:
    """Writes `modelopt_record` as JSON; the file is whole or not there.

    Raises:
        InputError: the file cannot be written.
    """
    record = modelopt_record(network, config, model, method)
    record["_usage"] = [line.replace("THIS_FILE.json", Path(path).name) for line in record["_usage"]]
    write_atomic(path, json.dumps(record, indent=1) + "\n")
