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
from trt_tui.core.production import NOT_TOLD
from trt_tui.errors import InputError
from trt_tui.words import first_few

_LISTS = ("nodes_to_exclude", "nodes_to_quantize", "op_types_to_exclude", "op_types_to_quantize",
          "op_types_to_exclude_fp16", "nodes_to_include", "op_types_to_include")
_PATTERNS = ("nodes_to_exclude", "nodes_to_quantize", "nodes_to_include")
_MODES = {"int8": Precision.INT8, "fp8": Precision.FP8, "int4": Precision.INT4, "int4_awq": Precision.INT4,
          "int4_awq_clip": Precision.INT4, "int4_rtn": Precision.INT4}
_FLOATS = {"fp32": Precision.FP32, "fp16": Precision.FP16, "bf16": Precision.BF16, "float16": Precision.FP16,
           "float32": Precision.FP32, "bfloat16": Precision.BF16}
_READ = (*_LISTS, "quantize_mode", "high_precision_dtype", "low_precision_type", "calibration_cache_path",
         "calibration_method", "enable_gemv_detection_for_trt", "keep_io_types", "quantize", "autocast")
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
    asked.take_left_out(record.get(f"_{NOT_TOLD}"))
    asked.tf32 = record.get("_tf32") is True
    quantize, autocast = parts.get("quantize"), parts.get("autocast")
    low = _word(autocast, "low_precision_type", _FLOATS, Precision.FP16, file) if autocast is not None else None
    floats: set[str] = set()
    if autocast is not None:
        floats |= {group.name for group in _Lists(autocast, network, file, asked.unread).left_out()}
    if quantize is None:
        asked.quantized = asked.other = low or Precision.FP16
        asked.layers = dict.fromkeys(floats, Precision.FP32)
    else:
        asked.quantized = _word(quantize, "quantize_mode", _MODES, Precision.INT8, file)
        asked.other = low or _word(quantize, "high_precision_dtype", _FLOATS, Precision.FP16, file)
        lists = _Lists(quantize, network, file, asked.unread)
        if asked.other is not Precision.FP32:
            floats |= {group.name for group in lists.of_types("op_types_to_exclude_fp16")}
        _place(asked, network, {group.name for group in lists.left_out()}, floats)
        if quantize.get("enable_gemv_detection_for_trt") is not False:
            asked.notes.append("ModelOpt leaves out more layers by rules of its own, such as products with one row or "
                               "column and Convs of few channels; its log names them, and here they are quantized")
        if isinstance(cache := quantize.get("calibration_cache_path"), str) and cache:
            asked.cache = file.parent / cache
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


def _place(asked: Asked, network: Network, unquantized: set[str], floats: set[str]) -> None:
    """Gives layers their precisions.

    Args:
        unquantized: The groups that get no Q/DQ.
        floats: The groups that stay in FP32, or have FP32 around them if they are quantized.
    """
    quantized = [group.name for group in network.groups
                 if asked.quantized in group.allowed and group.name not in unquantized]
    around = [name for name in quantized if name in floats]
    low = asked.other
    if around and len(around) == len(quantized):
        asked.other = Precision.FP32
    elif around:
        asked.unread.append(f"FP32 around {first_few(around, 3)}: what is around layers in {asked.quantized.label} is "
                            f"{low.label}, as it is for most of them")
    for group in network.groups:
        if group.name not in quantized:
            asked.layers[group.name] = Precision.FP32 if group.name in floats else low


class _Lists:
    """The lists of names and operators that one of the two tools is told.

    Raises:
        InputError: an entry is not of its kind.
    """

    def __init__(self, part: Mapping[str, Any], network: Network, file: Path, unread: list[str]) -> None:
        self.network = network
        self.lists: dict[str, list[str]] = {}
        for key in _LISTS:
            value = part.get(key, [])
            value = [value] if isinstance(value, str) else value if value is not None else []
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise InputError(f"{file.name}: {key} is no list of names", "ModelOpt takes a list of texts there",
                                 "Correct the file.")
            self.lists[key] = value
        self._types = {key: frozenset(found) for key, found in self.lists.items()}
        self.patterns = {key: _patterns(self.lists[key], key, file) for key in _PATTERNS}
        names = [layer.name for layer in network.layers]
        for key, found in self.patterns.items():
            unread += [f"{key} {one.pattern!r}: no layer matches" for one in found if not any(map(one.match, names))]
        operators = {layer.op_type for layer in network.layers}
        own = {network.layer(name).op_type for group in network.groups for name in group.anchors}
        for key in (key for key in _LISTS if key not in _PATTERNS):
            for one in self.lists[key]:
                if one not in operators:
                    unread.append(f"{key} {one!r}: no layer is one")
                elif one not in own:
                    unread.append(f"{key} {one!r}: it is fused with other layers, whose precision it takes")

    def left_out(self) -> list[Group]:
        """Returns the groups whose own layer is left out, and not taken in by name or type."""
        return [group for group in self.network.groups
                if any(self._out(name) for name in group.layers if name in group.anchors)]

    def of_types(self, key: str) -> list[Group]:
        """Returns the groups whose own layer is of one of the operators in a list."""
        return [group for group in self.network.groups
                if any(self.network.layer(name).op_type in self.lists[key] for name in group.anchors)]

    def _out(self, name: str) -> bool:
        operator, types = self.network.layer(name).op_type, self._types

        def hit(key: str) -> bool:
            return any(one.match(name) for one in self.patterns[key])

        if hit("nodes_to_include") or operator in types["op_types_to_include"]:
            return False
        return (hit("nodes_to_exclude") or operator in types["op_types_to_exclude"]
                or bool(types["op_types_to_quantize"]) and operator not in types["op_types_to_quantize"]
                or bool(types["nodes_to_quantize"]) and not hit("nodes_to_quantize"))


def _patterns(texts: list[str], key: str, file: Path) -> list[re.Pattern[str]]:
    found = []
    for text in texts:
        try:
            found.append(re.compile(text))
        except re.error as error:
            raise InputError(f"{file.name}: {key} {text[:40]!r} is no pattern", str(error),
                             "Correct it; ModelOpt takes it for re.match.") from None
    return found
