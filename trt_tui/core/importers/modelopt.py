"""What NVIDIA ModelOpt was told to quantize and to leave out: JSON, YAML, or a command line.

The keys are the arguments of ``modelopt.onnx.quantization.quantize`` and ``modelopt.onnx.autocast``, and their command
lines' options by the same names: names are patterns for ``re.match``, as ModelOpt has them (a pattern that ends early
hits longer names too); ``nodes_to_quantize`` and ``op_types_to_quantize`` leave out all others. Two entries
``quantize`` and ``autocast`` hold what each of the two tools is told, as trt-tui exports it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.importers.asked import Asked
from trt_tui.core.importers.shell import shell_words
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.words import first_few

_LISTS = ("nodes_to_exclude", "nodes_to_quantize", "op_types_to_exclude", "op_types_to_quantize",
          "op_types_to_exclude_fp16", "nodes_to_include", "op_types_to_include")
_MODES = {"int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4, "int4_awq": Precision.INT4,
          "int4_awq_clip": Precision.INT4, "int4_rtn": Precision.INT4}
_FLOATS = {"fp32": Precision.FP32, "fp16": Precision.FP16, "bf16": Precision.BF16, "float16": Precision.FP16,
           "float32": Precision.FP32, "bfloat16": Precision.BF16}
_READ = (*_LISTS, "quantize_mode", "high_precision_dtype", "low_precision_type", "calibration_cache_path", "quantize",
         "autocast")
KEYS = frozenset((*_LISTS, "quantize_mode", "low_precision_type"))
"""By one of these a file is known."""


def is_modelopt(record: Any) -> bool:
    """Whether a record of a file is one of ModelOpt's arguments."""
    parts = (record, record.get("quantize"), record.get("autocast")) if isinstance(record, Mapping) else ()
    return any(isinstance(part, Mapping) and not KEYS.isdisjoint(part) for part in parts)


def is_modelopt_command(text: str) -> bool:
    """Whether a text holds a command line of ModelOpt's ONNX tools."""
    return bool(re.search(r"modelopt\.onnx\.(?:quantization|autocast)\b", text))


def read_command(text: str, network: Network, file: Path) -> Asked:
    """What the command lines of ModelOpt in a script ask for.

    Raises:
        InputError: they cannot be taken apart.
    """
    record: dict[str, Any] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not is_modelopt_command(line) or line.lstrip().startswith("#"):
            continue
        words = shell_words(line, file.name)
        told: dict[str, Any] = {}
        option = ""
        for word in words:
            if word.startswith("--"):
                option, given, value = word[2:].partition("=")
                told[option] = [value] if given else []
            elif option:
                told[option].append(word)
        tool = "autocast" if "modelopt.onnx.autocast" in line else "quantize"
        record[tool] = {key: value if key in _LISTS else " ".join(value) for key, value in told.items()}
    return read_record(record, network, file)


def read_record(record: Mapping[str, Any], network: Network, file: Path) -> Asked:
    """What ModelOpt's arguments ask for.

    Raises:
        InputError: an entry is not of its kind.
    """
    parts = {part: record[part] for part in ("quantize", "autocast") if isinstance(record.get(part), Mapping)}
    if not parts:
        casts = "low_precision_type" in record and "quantize_mode" not in record
        parts = {"autocast" if casts else "quantize": record}
    asked = Asked("what ModelOpt is told")
    quantize, autocast = parts.get("quantize"), parts.get("autocast")
    low = _word(autocast, "low_precision_type", _FLOATS, Precision.FP16, file) if autocast is not None else None
    if quantize is not None:
        asked.quantized = _word(quantize, "quantize_mode", _MODES, Precision.INT8, file)
        asked.other = low or _word(quantize, "high_precision_dtype", _FLOATS, Precision.FP16, file)
        for group in _left_out(quantize, network, file, asked.unread):
            asked.layers[group.name] = asked.other
        if isinstance(cache := quantize.get("calibration_cache_path"), str) and cache:
            asked.cache = file.parent / cache
    else:
        asked.quantized = asked.other = low or Precision.FP16
    if autocast is not None:
        for group in _left_out(autocast, network, file, asked.unread):
            asked.layers[group.name] = Precision.FP32
    others = sorted({str(key) for part in (record, *parts.values()) for key in part
                     if key not in _READ and not str(key).startswith("_")})
    if others:
        asked.unread.append(f"{first_few(others, 8)}: not about which layer runs in what")
    return asked


def _word(part: Mapping[str, Any], key: str, words: Mapping[str, Precision], default: Precision, file: Path
          ) -> Precision:
    value = part.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{file.name}: {key} is {str(value)[:40]!r}", f"there are {', '.join(words)}",
                         "Correct the file.")
    return words[value]


def _left_out(part: Mapping[str, Any], network: Network, file: Path, unread: list[str]) -> list[Group]:
    """The groups whose own layer is left out."""
    lists: dict[str, list[str]] = {}
    for key in _LISTS:
        value = part.get(key, [])
        value = [value] if isinstance(value, str) else value if value is not None else []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InputError(f"{file.name}: {key} is no list of names", "ModelOpt takes a list of texts there",
                             "Correct the file.")
        lists[key] = value
    patterns = {key: _patterns(lists[key], key, file) for key in ("nodes_to_exclude", "nodes_to_quantize")}
    names = [layer.name for layer in network.layers]
    for key, found in patterns.items():
        unread += [f"{key} {one.pattern!r}: no layer matches" for one in found if not any(map(one.match, names))]
    operators = {layer.op_type for layer in network.layers}
    unread += [f"op_types_to_exclude {one!r}: no layer is one" for one in lists["op_types_to_exclude"]
               if one not in operators]
    excluded, quantized = set(lists["op_types_to_exclude"]), set(lists["op_types_to_quantize"])
    for key in _LISTS[4:]:
        if lists[key]:
            unread.append(f"{key}: layers that are forced into low precision are not")

    def out(name: str) -> bool:
        layer = network.layer(name)
        return (any(one.match(name) for one in patterns["nodes_to_exclude"])
                or layer.op_type in excluded
                or bool(quantized) and layer.op_type not in quantized
                or bool(lists["nodes_to_quantize"]) and not any(one.match(name)
                                                                for one in patterns["nodes_to_quantize"]))

    return [group for group in network.groups if any(out(name) for name in group.layers if name in group.anchors)]


def _patterns(texts: list[str], key: str, file: Path) -> list[re.Pattern[str]]:
    found = []
    for text in texts:
        try:
            found.append(re.compile(text))
        except re.error as error:
            raise InputError(f"{file.name}: {key} {text[:40]!r} is no pattern", str(error),
                             "Correct it; ModelOpt takes it for re.match.") from None
    return found
