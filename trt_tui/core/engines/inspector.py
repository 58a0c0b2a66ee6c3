"""Engine layers as TensorRT's inspector, build logs and profiles list them, with the ONNX nodes in each.

The inspector's JSON differs by release. Tensors have a ``Format/Datatype`` up to TensorRT 10, and a ``Datatype`` and a
``Format`` from 11 on. ``Metadata`` names the ONNX nodes: "[ONNX Layer: conv1]", one after another, separated by a
control character. If it is empty, the name of the engine layer shows which nodes were fused into it ("conv1 + relu1",
"PWN(mul1)", "{ForeignNode[first...last]}").

A build log also has a list of engine layers: a message that begins with ``Layers:`` and has one row per layer.

TensorRT-RTX logs it without a GPU. TensorRT 8.6 and 10 log it after a build with detailed profiling verbosity. A row
has the fields of the inspector's JSON in their order. Types are called ``Datatype`` (RTX, 11) or ``Format/Datatype``
(up to 10).

A profile that trtexec writes for an engine has the times of its layers.

For each layer, ``trtexec --exportProfile`` writes ``name``, ``timeMs``, ``averageMs``, ``medianMs`` (since 2022), and
``percentage``. It does not escape the names (NVIDIA/TensorRT, ``samples/common/sampleReporting.cpp``). The layer
information beside the profile, from ``--exportLayerInfo``, has the ONNX nodes and the precision of each engine layer.
Without it, the nodes are taken from the names of the engine layers.

The module also finds the kernel outputs of an engine that hold results of fusion groups.

TensorRT chooses the names of tensors between kernels. The inspector lists the outputs of each kernel and its layers.
The result of a group can be read if the last kernel with its layers writes the result or a copy of it. If the values
are quantized, the scale is that of a Quantize in the typed network.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.rulebook import VALUE_PRESERVING
from trt_tui.core.network.layers import LayerKind, NetworkOutline
from trt_tui.core.network.model_editing import collect_by_key, iterate_reachable
from trt_tui.core.network.network import Network
from trt_tui.core.network.qdq.steps import QdqStep, read_qdq_step
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, broadcast_scales
from trt_tui.core.runner import DebugTensor
from trt_tui.errors import InputError
from trt_tui.files.reading import limit_file_reading, limit_reading_resources, read_bytes, read_text

COMPUTE, REFORMAT, QDQ, IDLE = "compute", "reformat", "qdq", "idle"
"""Kinds of engine layers: those that compute, that change a layout or type, that are unfused Q/DQ, and idle ones."""

ENGINE_PRECISION_TITLES = {
    **{precision.label: precision.label for precision in reversed(Precision)},
    "?": "unknown",
    REFORMAT: "reformats",
    QDQ: "unfused Q/DQ",
}
"""Titles of the keys of `EngineReport.precision_shares`, in the order of columns."""

_LAYER_PREFIX = "[ONNX Layer: "
_LAYER_END_PATTERN = re.compile(r"(.*?)\](?=[\x1e\x1f;]|\s*(?:\[|$))")
FUSED_REGION_PATTERN = re.compile(r"\{ForeignNode\[((?:(?!\{ForeignNode\[).)*?)\]\}")
_NAME_SEPARATORS = re.compile(r" \+ | \|\| |, ")
_REVERSED_COPY_SUFFIX = re.compile(r"(?:\d+_enolc_|\d+_\d+lym_|tuptuo_ypoc_|tupni_ypoc_|\d+:)*")
"""Suffixes of the names of copies, matched against the reversed name. A forward search would try every position of a
long name."""
_MAX_ADDED_SUFFIXES = 8
"""Maximum number of suffixes of added nodes after the name of a tensor. The lowerings add at most two."""
ADDED_NODE_SUFFIX = re.compile(
    r"(?:__(?:(?:fp16|bf16|fp32)__)?(?:q|dq|fp16|bf16|fp32|clamped|output)|_quantized"
    r"|_DequantizeLinear_Output)(?:_\d+)?$"
)
_QDQ_SUFFIX = re.compile(r"(?:__d?q|_quantized|_DequantizeLinear_Output)(?:_\d+)?$")
_LIGHT_LAYER_TYPES = ("scale", "pointwise", "pointwisev2", "cast", "kgen")
"""Types of the engine layers that TensorRT makes of unfused Q, DQ and Casts."""

_MHA_PATTERN = re.compile(r"_gemm_mha|_fmha|fused_mha")
"""Names of the kernels that compute a whole attention."""

_DATA_MOVEMENT_PATTERN = re.compile(r"__myl_(?:Tran|Resh|Move|Conc|Cast|Slic|Copy)+_")
"""Names of generated kernels that only move values or change their type."""

_OTHER_PROFILE_PATTERN = re.compile(r" \[profile [1-9]\d*\]")
_REGION_NUMBER_PATTERN = re.compile(r"_myl(\d+)_\d+$")
"""The number of the fused region in the name of a layer. `_OTHER_PROFILE_PATTERN` finds layers of other profiles."""

_TypedTensor = tuple[str, "Precision | None"]
"""The name and the type of a tensor."""

_PRECISION_PATTERNS = (
    (re.compile(r"(?<!u)int8\b", re.I), Precision.INT8),
    (re.compile(r"(?<!u)int4\b", re.I), Precision.INT4),
    (re.compile(r"e8m0", re.I), Precision.MXFP8),
    (re.compile(r"fp4|float4", re.I), Precision.NVFP4),
    (re.compile(r"fp8|float8", re.I), Precision.FP8),
    (re.compile(r"bf16|bfloat", re.I), Precision.BF16),
    (re.compile(r"half|fp16|float16", re.I), Precision.FP16),
    (re.compile(r"fp32|float(?!8|4)", re.I), Precision.FP32),
)


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine, as TensorRT lists it.

    Attributes:
        name: The name in TensorRT and its profiler.
        type: TensorRT's name of the layer type, such as "CaskConvolution".
        kind: One of the kinds of engine layers in this module.
        precision: The precision of its computation, derived from the types of its inputs and weights; None if unknown.
        network_layers: Names of the network's layers in it that TensorRT reports.
        is_fused_region: True for a fused region of many nodes, for which TensorRT reports no inner details.
        kernel_name: The name of the kernel; "" if it is not reported.
        ms: Measured time of one execution in ms, with the profiler attached; None if not measured.
        input_tensors: Names of the tensors that it reads. ``input_types`` are their types; None for a type that is not
            a `Precision`.
        output_tensors: Names of the tensors that it writes. ``output_types`` are their types.
        is_constant: True if it reads only constants, so that it writes the same values in every execution.
        added_nodes: Names of the nodes in it that the lowering added (Q, DQ, Cast).
        other_nodes: Further names in it, such as those of the Q and DQ nodes of a quantized file.
    """

    name: str
    type: str
    kind: str
    precision: Precision | None
    network_layers: tuple[str, ...] = ()
    is_fused_region: bool = False
    kernel_name: str = ""
    ms: float | None = None
    input_tensors: tuple[str, ...] = ()
    input_types: tuple[Precision | None, ...] = ()
    output_tensors: tuple[str, ...] = ()
    output_types: tuple[Precision | None, ...] = ()
    is_constant: bool = False
    added_nodes: tuple[str, ...] = ()
    other_nodes: tuple[str, ...] = ()

    @property
    def is_mha(self) -> bool:
        """True if the layer computes an attention in one kernel."""
        return bool(_MHA_PATTERN.search(self.kernel_name) or _MHA_PATTERN.search(self.name))

    @property
    def precision_key(self) -> str:
        """A key of `ENGINE_PRECISION_TITLES`: the precision in words, or the kind of a layer that computes nothing."""
        if self.kind != COMPUTE:
            return self.kind
        return self.precision.label if self.precision is not None else "?"


@dataclass(frozen=True)
class EngineReport:
    """The layers of one engine, with counts and times by precision."""

    layers: tuple[EngineLayer, ...]

    def count_layers(self, layer_kind: str) -> int:
        return sum(layer.kind == layer_kind for layer in self.layers)

    def precision_shares(self) -> dict[str, tuple[int, float | None]]:
        """Returns the number of layers in each precision, and their share of the time.

        The lowest precision comes first. The key "?" means an unknown precision. Reformats and unfused Q/DQ have
        separate keys.
        """
        total = sum(layer.ms for layer in self.layers if layer.ms is not None)
        times = collect_by_key((layer.precision_key, layer.ms or 0.0) for layer in self.layers if layer.kind != IDLE)
        return {
            word: (len(times[word]), sum(times[word]) / total if total > 0 else None)
            for word in ENGINE_PRECISION_TITLES
            if word in times
        }

    def with_layer_times(self, ms_by_layer: Mapping[str, float]) -> EngineReport:
        """Returns the report with the layer times of a profiler, in ms by engine layer name."""
        return EngineReport(tuple(replace(layer, ms=ms_by_layer.get(layer.name)) for layer in self.layers))


def find_first_different_kernel(first: EngineReport, second: EngineReport) -> str:
    """Returns a text with the first kernel that differs between two engines, and its layers; "" if all are equal.

    Kernels differ if they compute other layers, in other types, or with another tactic.
    """
    signatures = {_kernel_signature(kernel) for kernel in first.layers if kernel.kind == COMPUTE}
    for kernel in second.layers:
        if kernel.kind == COMPUTE and _kernel_signature(kernel) not in signatures:
            names = set(kernel.network_layers)
            other = next(
                (item for item in first.layers if item.kind == COMPUTE and names.intersection(item.network_layers)),
                None,
            )
            before = other.kernel_name or other.name if other is not None else "no kernel"
            after = kernel.kernel_name or kernel.name
            return f"{', '.join(kernel.network_layers[:4]) or kernel.name}: {before} and {after}"
    return ""


def _kernel_signature(kernel: EngineLayer) -> tuple[object, ...]:
    """Returns the layers, the tactic and the types of a kernel, for comparisons."""
    return (
        tuple(sorted(kernel.network_layers)),
        kernel.kernel_name,
        kernel.precision,
        kernel.input_types,
        kernel.output_types,
    )


def read_engine_report(inspector_json: str, network: NetworkOutline) -> EngineReport:
    """Reads the JSON of TensorRT's engine inspector, or of trtexec's ``--exportLayerInfo``.

    Raises:
        InputError: The text is not such JSON, or the engine was built without detailed profiling verbosity.
    """
    with limit_reading_resources("the layer information of an engine", len(inspector_json)):
        try:
            # TensorRT 8.6 does not escape the separators in its metadata.
            layers = json.loads(inspector_json, strict=False)["Layers"]
            if layers and not any(isinstance(layer, dict) for layer in layers):
                raise InputError(
                    "the engine gives the names of its layers only",
                    "it was built without detailed verbosity",
                    "Build it with trt-tui, or with trtexec --profilingVerbosity=detailed.",
                )
            return build_engine_report(layers, network)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                "this is not the layer information of an engine",
                f"{type(error).__name__}: {error}",
                "Layer information comes from the engine inspector or from trtexec --exportLayerInfo.",
            ) from None


def build_engine_report(layer_entries: Iterable[Mapping[str, Any]], network: NetworkOutline) -> EngineReport:
    """Builds an engine report from layer entries in the form of the inspector's JSON, in execution order."""
    layer_finder = LayerFinder(network)
    fed_tensors = {info.name for info in network.inputs}
    layer_entries = _select_layers_of_first_profile(list(layer_entries))
    if fed_tensors.isdisjoint(str(tensor.get("Name")) for entry in layer_entries for tensor in entry.get("Inputs", ())):
        fed_tensors = {str(tensor.get("Name")) for entry in layer_entries for tensor in entry.get("Inputs", ())}
    engine_layers = [_parse_engine_layer(entry, layer_finder, fed_tensors) for entry in layer_entries]
    named_layers = {node for layer in engine_layers if not layer.is_fused_region for node in layer.network_layers}
    return EngineReport(
        tuple(
            replace(
                layer, network_layers=layer_finder.find_region_layers(layer.name, named_layers) or layer.network_layers
            )
            if layer.is_fused_region
            else layer
            for layer in engine_layers
        )
    )


def _select_layers_of_first_profile(layer_entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the engine layers of the first optimization profile.

    The layers of other profiles follow those of the first. Their names contain the number of the profile. In a fused
    region, only some names contain that number, but all contain the number of the region.
    """
    first = next((entry for entry in layer_entries if _OTHER_PROFILE_PATTERN.search(str(entry.get("Name", "")))), None)
    if first is None:
        return layer_entries
    first_region = _REGION_NUMBER_PATTERN.search(str(first["Name"]))
    end = next(
        (
            index
            for index, entry in enumerate(layer_entries)
            if entry is first
            or first_region is not None
            and (match := _REGION_NUMBER_PATTERN.search(str(entry.get("Name", "")))) is not None
            and match[1] == first_region[1]
        ),
        len(layer_entries),
    )
    return layer_entries[:end]


def _parse_engine_layer(
    layer_entry: Mapping[str, Any], layer_finder: LayerFinder, input_dependent_tensors: set[str]
) -> EngineLayer:
    """Parses one layer entry of the inspector's JSON.

    Args:
        input_dependent_tensors: Names of the tensors that depend on an input of the network. The outputs of this layer
            are added if it reads such a tensor.
    """
    name, type_text = layer_entry.get("Name", ""), layer_entry.get("LayerType", "")
    inputs, outputs = (
        [(str(tensor.get("Name", "")), _parse_precision(_type_text(tensor))) for tensor in layer_entry.get(key, ())]
        for key in ("Inputs", "Outputs")
    )
    fed_inputs = [index for index, (tensor, _) in enumerate(inputs) if tensor in input_dependent_tensors]
    input_dependent_tensors.update(tensor for tensor, _ in outputs if fed_inputs)
    weights = _parse_precision(str((layer_entry.get("Weights") or {}).get("Type", "")))
    is_region = "ForeignNode" in name and not name.startswith("Reformatting")
    nodes, added, others = layer_finder.find_named_layers(name, str(layer_entry.get("Metadata", "")))
    layer_type = type_text.lower()
    is_copy = name.startswith("Reformatting CopyNode")
    is_light = not nodes and layer_type in _LIGHT_LAYER_TYPES
    types = [precision for _, precision in (*inputs, *outputs)]
    if layer_type == "noop":
        layer_kind = IDLE
    elif (
        layer_type in ("quantize", "dequantize")
        or layer_entry.get("Origin") == "QDQ"
        or is_light
        and any(map(_QDQ_SUFFIX.search, added))
    ):
        layer_kind = QDQ
    elif layer_type == "reformat" or is_copy or is_light and (added or _DATA_MOVEMENT_PATTERN.match(name)):
        layer_kind = REFORMAT
    elif layer_type == "constant" or not any((*types, _has_unknown_types(layer_entry))):
        layer_kind = IDLE
    else:
        layer_kind = COMPUTE
    if is_copy:
        nodes = ()  # a copy has the name of its neighbouring layer
    return EngineLayer(
        name,
        type_text,
        layer_kind,
        _find_layer_precision(inputs, fed_inputs, outputs, weights, is_region),
        nodes,
        is_region,
        str(layer_entry.get("TacticName", "") or ""),
        None,
        tuple(tensor for tensor, _ in inputs),
        tuple(precision for _, precision in inputs),
        tuple(tensor for tensor, _ in outputs),
        tuple(precision for _, precision in outputs),
        not fed_inputs and not is_copy,
        added,
        others,
    )


def _find_layer_precision(
    inputs: Sequence[_TypedTensor],
    non_constant_input_indices: Sequence[int],
    outputs: Sequence[_TypedTensor],
    weight_type: Precision | None,
    is_fused_region: bool,
) -> Precision | None:
    """Returns the precision of an engine layer from its tensor types; None for a fused region.

    The type of quantized weights counts first, then the type of the first input, then that of the outputs. A layer that
    reads FP8 values with E8M0 scales is in MXFP8.

    Args:
        non_constant_input_indices: Indices of the inputs that are not constants. If there are any, only their types
            count.
    """
    if is_fused_region:
        return None
    deciding_types = [inputs[index][1] for index in non_constant_input_indices] or [
        precision for _, precision in inputs
    ]
    if Precision.MXFP8 in (item for _, item in inputs) and deciding_types[0] is Precision.FP8:
        return Precision.MXFP8
    for precision, quantized_type in QUANTIZED_TYPES.items():
        read_types = deciding_types[:1] if quantized_type.quantizes_activations else [item for _, item in inputs]
        if precision in (weight_type, *read_types):
            return precision
    known_types = [
        precision for precision in (*deciding_types, *(precision for _, precision in outputs)) if precision is not None
    ]
    return known_types[0] if known_types else weight_type


def _type_text(tensor_entry: Mapping[str, Any]) -> str:
    return str(tensor_entry.get("Datatype") or tensor_entry.get("Format/Datatype") or "")


def _has_unknown_types(layer_entry: Mapping[str, Any]) -> bool:
    """Returns True if the inspector reports no types ("N/A due to dynamic shapes").

    The reason is that no execution context has set the shapes.
    """
    return any(
        _type_text(tensor_entry).startswith("N/A")
        for tensor_entry in (*layer_entry.get("Inputs", ()), *layer_entry.get("Outputs", ()))
    )


def _parse_precision(type_text: str) -> Precision | None:
    return next((precision for pattern, precision in _PRECISION_PATTERNS if pattern.search(type_text)), None)


class LayerFinder:
    """A finder that recognises the network's layers in the names and metadata of engine layers."""

    def __init__(self, network: NetworkOutline) -> None:
        self.layer_indices = {layer.name: position for position, layer in enumerate(network.layers)}
        self.layer_names = [layer.name for layer in network.layers]
        layers = list(enumerate(network.layers))
        self.first_readers = {tensor: position for position, layer in reversed(layers) for tensor in layer.inputs}
        self.producers = {tensor: position for position, layer in layers for tensor in layer.outputs}

    def find_named_layers(
        self, engine_layer_name: str, metadata: str
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Returns the network's layers in an engine layer, the nodes that the lowering added, and other names."""
        pieces = metadata.split(_LAYER_PREFIX)[1:]
        name_tokens = [match[1] for piece in pieces if (match := _LAYER_END_PATTERN.match(piece)) is not None] or [
            token
            for part in _NAME_SEPARATORS.split(FUSED_REGION_PATTERN.sub("", engine_layer_name))
            for token in self._list_names_without_wrappers(part)
        ]
        layers = [self._find_network_layer_name(token) for token in name_tokens]
        unknown_tokens = [token for token, layer in zip(name_tokens, layers, strict=True) if layer is None]
        return (
            tuple(dict.fromkeys(layer for layer in layers if layer is not None)),
            tuple(dict.fromkeys(token for token in unknown_tokens if ADDED_NODE_SUFFIX.search(token))),
            tuple(dict.fromkeys(token for token in unknown_tokens if not ADDED_NODE_SUFFIX.search(token))),
        )

    def find_region_layers(self, region_name: str, named_layers: set[str]) -> tuple[str, ...]:
        """Returns the network's layers between the two ends in the name of a fused region.

        Layers in the names of other engine layers are left out. An end may be unknown, such as a constant of TensorRT.
        The region then extends to that end of the network.
        """
        match = FUSED_REGION_PATTERN.search(region_name)
        if match is None:
            return ()
        first, _, last = match[1].partition("...")
        start, end = self.find_layer_position(first), self.find_layer_position(last or first)
        start, end = 0 if start is None else start, len(self.layer_names) - 1 if end is None else end
        return tuple(
            layer for layer in self.layer_names[min(start, end) : max(start, end) + 1] if layer not in named_layers
        )

    def find_layer_position(self, layer_or_tensor: str) -> int | None:
        """Returns the position of a layer, or of the layer that computes or reads a tensor; None for any other name."""
        layer_name = self._find_network_layer_name(layer_or_tensor)
        if layer_name is not None:
            return self.layer_indices[layer_name]
        tensor = layer_or_tensor
        for _ in range(_MAX_ADDED_SUFFIXES):
            tensor = ADDED_NODE_SUFFIX.sub("", tensor)
        return self.producers.get(tensor, self.first_readers.get(tensor))

    def _find_network_layer_name(self, engine_name: str) -> str | None:
        if engine_name in self.layer_indices:
            return engine_name
        copied = _REVERSED_COPY_SUFFIX.match(engine_name[::-1])
        original = engine_name[: len(engine_name) - copied.end()] if copied is not None else engine_name
        return original if original in self.layer_indices else None

    @staticmethod
    def _list_names_without_wrappers(name: str) -> Iterable[str]:
        name = name.strip()
        yield name
        bare = re.sub(r"^(?:PWN\(|\()+", "", name)
        if bare != name:
            yield bare
        yield bare.rstrip(")")


LISTING_HEADING = "Layers:"
"""The first line of the message."""

_ROW_PATTERN = re.compile(r"Name: (.*?), LayerType: ([^,\[\]{}]*), Inputs: (.*)", re.S)
_TENSORS_PATTERN = re.compile(
    r"(?:^|, )(Inputs|Constants|Outputs): \["
    r"(?: \{ ((?:[^,]|,(?! (?:Inputs|Constants|Outputs): \[))*?) \}|)\](?=, [A-Z]|$)",
    re.S,
)
_TENSOR_NAME_PATTERN = re.compile(r"Name: (.*?), (?:Location|Dimensions): ", re.S)
_DATATYPE_PATTERN = re.compile(r"(Format/Datatype|Datatype): ([^,}]*)")
_METADATA_PATTERN = re.compile(r", Metadata: ?(.*)$", re.S)
_TACTIC_PATTERN = re.compile(r", TacticName: (.*?)(?=, [A-Z]\w*: |$)", re.S)
_ORIGIN_PATTERN = re.compile(r", Origin: (\w+)")
_WEIGHTS_TYPE_PATTERN = re.compile(r', Weights: \{"Type": "(\w+)"')
_END_LINES = ("", "Bindings:", "I/O Tensors:", "Engine Metadata:")


def read_layer_listing(listing_text: str, network: NetworkOutline) -> EngineReport:
    """Reads the list of engine layers in a build log.

    Args:
        listing_text: The log message, from its heading on.

    Raises:
        InputError: The text is not such a list, or a row cannot be read; the error quotes the row.
    """
    with limit_reading_resources("the builder's list of layers", len(listing_text)):
        rows = _split_listing_into_rows(listing_text)
        if not rows:
            raise InputError(
                "the builder's list of layers cannot be read",
                "it is empty",
                "Its release may use another format; a build on a GPU reports its layers through the inspector.",
            )
        return build_engine_report([_parse_row(row) for row in rows], network)


def _split_listing_into_rows(listing_text: str) -> list[str]:
    """Splits a list of engine layers into rows. A row may have a name with line breaks."""
    rows: list[list[str]] = []
    complete = False
    heading, _, rest = listing_text.partition("\n")
    if heading.strip() != LISTING_HEADING:
        return []
    for line in rest.split("\n"):
        if line.startswith("Name: "):
            rows.append([line])
            complete = ", Metadata:" in line
        elif line.strip() in _END_LINES and (not rows or complete):
            break
        elif rows:
            rows[-1].append(line)
            complete = complete or ", Metadata:" in line
    return ["\n".join(lines) for lines in rows]


def _parse_row(listing_row: str) -> Mapping[str, Any]:
    """Parses a row of the list into an entry in the form of the inspector's JSON."""
    match = _ROW_PATTERN.fullmatch(listing_row)
    if match is None:
        raise _unreadable_row_error(listing_row)
    metadata = _METADATA_PATTERN.search(listing_row)
    middle = listing_row[match.start(3) - len("Inputs: ") : metadata.start() if metadata is not None else None]
    entry: dict[str, Any] = {
        "Name": match[1],
        "LayerType": match[2].strip(),
        "Metadata": metadata[1] if metadata is not None else "",
    }
    for tensors_match in _TENSORS_PATTERN.finditer(middle):
        entry[tensors_match[1]] = (
            [_parse_tensor(text, listing_row) for text in tensors_match[2].split(" }, { ")] if tensors_match[2] else []
        )
    if "Inputs" not in entry or "Outputs" not in entry:
        raise _unreadable_row_error(listing_row)
    for key, pattern in (("TacticName", _TACTIC_PATTERN), ("Origin", _ORIGIN_PATTERN)):
        if (value_match := pattern.search(middle)) is not None:
            entry[key] = value_match[1]
    if (weights := _WEIGHTS_TYPE_PATTERN.search(middle)) is not None:
        entry["Weights"] = {"Type": weights[1]}
    return entry


def _parse_tensor(tensor_text: str, listing_row: str) -> Mapping[str, str]:
    name, datatype = _TENSOR_NAME_PATTERN.match(tensor_text), _DATATYPE_PATTERN.search(tensor_text)
    if name is None or datatype is None:
        raise _unreadable_row_error(listing_row)
    return {"Name": name[1], datatype[1]: datatype[2].strip()}


def _unreadable_row_error(listing_row: str) -> InputError:
    return InputError(
        "the builder's list of layers cannot be read",
        f"no layer was recognised in: {listing_row[:120]}",
        "Its release may use another format; a build on a GPU reports its layers through the inspector.",
    )


GRAPH_SUFFIX, _PROFILE_SUFFIX = ".graph.json", ".profile.json"
"""The suffixes of the files of an engine's layers, and of their times."""

_MAX_LAYER_MS = 1e9
"""The largest time of an engine layer that is accepted, which is 11 days."""


def read_profile_report(profile_path: Path, network: NetworkOutline) -> EngineReport:
    """Reads the layers of an engine and their times from a profile. Their types come from the layer information beside
    it.

    Raises:
        InputError: A file cannot be read.
    """
    ms_by_layer, graph_path = read_layer_profile(profile_path), _find_layer_information_of_profile(profile_path)
    with limit_file_reading(profile_path if graph_path is None else graph_path):
        graph_report = (
            EngineReport(())
            if graph_path is None
            else read_engine_report(read_bytes(graph_path).decode("utf-8", "replace"), network)
        )
        listed_names = {layer.name for layer in graph_report.layers}
        named_report = build_engine_report(
            [
                {"Name": name, "Inputs": [{"Name": "", "Datatype": "N/A"}]}
                for name in ms_by_layer
                if name not in listed_names
            ],
            network,
        )
        remaining_ms = dict(ms_by_layer)
        return EngineReport(
            tuple(
                replace(layer, ms=remaining_ms.pop(layer.name, None))
                for layer in (*graph_report.layers, *named_report.layers)
            )
        )


def _find_layer_information_of_profile(profile_path: Path) -> Path | None:
    """Returns the path of the layer information beside a profile; None if there is none."""
    if not profile_path.name.endswith(_PROFILE_SUFFIX):
        return None
    graph_path = profile_path.with_name(profile_path.name.removesuffix(_PROFILE_SUFFIX) + GRAPH_SUFFIX)
    return graph_path if graph_path.exists() else None


def read_layer_profile(profile_path: Path) -> dict[str, float]:
    """Reads the times of engine layers from a profile of trtexec's ``--exportProfile``.

    Returns the mean milliseconds per execution by engine layer name, in execution order. Times of equal names are
    added.

    Raises:
        InputError: The file cannot be read, is not such a profile, or contains a time that is not possible.
    """
    with limit_file_reading(profile_path):
        try:
            entries = json.loads(read_text(profile_path), strict=False)
        except ValueError as error:
            raise _invalid_profile_error(profile_path, str(error)) from None
        if not isinstance(entries, list):
            raise _invalid_profile_error(profile_path, "it is not a list")
        mean_ms_by_layer: dict[str, float] = {}
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise _invalid_profile_error(profile_path, f"entry {index} is not an object")
            if index == 0 and "count" in entry and "name" not in entry:
                continue
            name, mean_ms = entry.get("name"), entry.get("averageMs")
            if not isinstance(name, str):
                raise _invalid_profile_error(profile_path, f"entry {index} has no name")
            if isinstance(mean_ms, bool) or not isinstance(mean_ms, int | float) or not 0 <= mean_ms <= _MAX_LAYER_MS:
                raise _invalid_profile_error(profile_path, f"averageMs of entry {index} is not a time in milliseconds")
            mean_ms_by_layer[name] = mean_ms_by_layer.get(name, 0.0) + float(mean_ms)
    if not math.fsum(mean_ms_by_layer.values()):
        raise _invalid_profile_error(profile_path, "no engine layer takes any time")
    return mean_ms_by_layer


def _invalid_profile_error(profile_path: Path, cause: str) -> InputError:
    return InputError(
        f"{profile_path.name} is not a profile of engine layers", cause, "Write it with trtexec --exportProfile."
    )


@dataclass(frozen=True)
class KernelOutput:
    """An output tensor of a kernel, with the facts that are needed to decode its values.

    Attributes:
        tensor: The name in the engine.
        quantize_step: The step that quantized the values; None for a float tensor.
        strides: Distances in memory, in elements. None if the inspector reports none or C order.
    """

    tensor: str
    quantize_step: QdqStep | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KernelResult:
    """A network tensor, and the kernel output that contains its values.

    Attributes:
        tensor: The tensor of the network: the final tensor of a group, or a copy of it.
        possible_outputs: The outputs of the kernel that may contain it. There is exactly one if the kernel has only one
            output.
    """

    tensor: str
    possible_outputs: tuple[KernelOutput, ...]


def find_kernel_results(
    engine_report: EngineReport, network: Network, typed_model: ir.Model, inspector_json: str
) -> dict[str, KernelResult]:
    """Returns the kernel outputs that contain the results of groups, by group name.

    Groups whose result no kernel writes are absent.

    Args:
        engine_report: The layers of the engine.
        typed_model: The model from which the engine was built.
        inspector_json: The inspector's JSON from which ``engine_report`` was read.
    """
    return _KernelResultFinder(
        engine_report, network, _find_quantized_tensors(typed_model, network), _read_output_strides(inspector_json)
    ).find_all_results()


class _KernelResultFinder:
    def __init__(
        self,
        engine_report: EngineReport,
        network: Network,
        quantized_tensors: Mapping[str, tuple[str, QdqStep]],
        strides_by_output: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.network, self.quantized_tensors, self.strides_by_output = network, quantized_tensors, strides_by_output
        layers = [layer for layer in engine_report.layers if not layer.is_constant]
        self.tensor_types = dict(
            pair for layer in layers for pair in zip(layer.output_tensors, layer.output_types, strict=True)
        )
        self.last_kernels = {name: layer for layer in layers if layer.kind == COMPUTE for name in layer.network_layers}

    def find_all_results(self) -> dict[str, KernelResult]:
        results: dict[str, KernelResult] = {}
        for group in self.network.groups:
            kernel = self.last_kernels.get(self.network.producer.get(group.final_tensor, ""))
            result = self._find_result_by_name(group.final_tensor) or (
                self._find_result_by_kernel(group.final_tensor, kernel) if kernel is not None else None
            )
            if result is not None:
                results[group.name] = result
        return results

    def _find_result_by_name(self, tensor_name: str) -> KernelResult | None:
        """Finds the engine tensor with the name of a network tensor, or of its quantized values."""
        if self.tensor_types.get(tensor_name) in FLOAT_PRECISIONS:
            return KernelResult(tensor_name, (self._build_kernel_output(tensor_name),))
        for name, (source, step) in self.quantized_tensors.items():
            if source == tensor_name and self.tensor_types.get(name) in QUANTIZED_TYPES:
                return KernelResult(tensor_name, (self._build_kernel_output(name, step),))
        return None

    def _find_result_by_kernel(self, tensor_name: str, engine_layer: EngineLayer) -> KernelResult | None:
        """Finds the kernel output with the values of a tensor or of its copy; None if none or several outputs may
        contain them."""
        network, kernel_layers = self.network, set(engine_layer.network_layers)
        last_tensor = tensor_name
        while (readers := network.consumers.get(last_tensor, ())) and all(
            reader in kernel_layers for reader in readers
        ):
            copies = [network.get_layer(reader) for reader in readers]
            if len(copies) != 1 or copies[0].kind is not LayerKind.COPY or len(copies[0].outputs) != 1:
                return None
            last_tensor = copies[0].outputs[0]
        leaving_tensors = [
            name
            for node in engine_layer.network_layers
            for name in network.get_layer(node).outputs
            if name == last_tensor or _is_read_outside_layers(name, network, kernel_layers)
        ]
        outputs_by_tensor = {name: self._list_possible_outputs(name, engine_layer) for name in leaving_tensors}
        possible_outputs = outputs_by_tensor[last_tensor] if last_tensor in outputs_by_tensor else ()
        if len(leaving_tensors) == 1:  # one result can be written both as floats and as quantized values
            return KernelResult(last_tensor, possible_outputs[:1]) if possible_outputs else None
        output_names = {output.tensor for outputs in outputs_by_tensor.values() for output in outputs}
        return (
            KernelResult(last_tensor, possible_outputs)
            if possible_outputs and len(output_names) == len(engine_layer.output_tensors) == len(leaving_tensors)
            else None
        )

    def _list_possible_outputs(self, tensor_name: str, engine_layer: EngineLayer) -> tuple[KernelOutput, ...]:
        """Returns the outputs of a kernel that may contain a tensor. Quantized values count only if a Quantize reads
        the tensor.
        """
        float_outputs = [
            self._build_kernel_output(name)
            for name in engine_layer.output_tensors
            if self.tensor_types[name] in FLOAT_PRECISIONS
        ]
        step = _find_quantize_step(tensor_name, engine_layer, self.network, self.quantized_tensors)
        quantized_outputs = [
            self._build_kernel_output(name, step)
            for name in engine_layer.output_tensors
            if self.tensor_types[name] in QUANTIZED_TYPES and step is not None
        ]
        return (*float_outputs, *quantized_outputs)

    def _build_kernel_output(self, output_name: str, step: QdqStep | None = None) -> KernelOutput:
        return KernelOutput(output_name, step, self.strides_by_output.get(output_name))


def _find_quantize_step(
    tensor_name: str, engine_layer: EngineLayer, network: Network, quantized_tensors: Mapping[str, tuple[str, QdqStep]]
) -> QdqStep | None:
    """Finds the Quantize of a tensor that a kernel writes as quantized values.

    It follows the tensor directly, or after operators that only copy values. None if there is none, or if several have
    different scales.
    """
    reached = set(
        iterate_reachable(
            [tensor_name],
            lambda tensor: [
                name
                for reader in map(network.get_layer, network.consumers.get(tensor, ()))
                for name in reader.outputs
                if reader.kind is LayerKind.COPY or reader.op_type in VALUE_PRESERVING
            ],
        )
    )
    named_steps = {name: step for name, (source, step) in quantized_tensors.items() if source in reached}
    steps = [step for name, step in named_steps.items() if name in engine_layer.added_nodes] or [*named_steps.values()]
    is_unique = bool(steps) and all(
        step.dtype is steps[0].dtype
        and step.axis == steps[0].axis
        and np.array_equal(np.asarray(step.scale), np.asarray(steps[0].scale))
        for step in steps
    )
    return steps[0] if is_unique else None


def _is_read_outside_layers(tensor_name: str, network: Network, layer_names: set[str]) -> bool:
    """Returns True if a tensor is a network output, or if a layer outside the given ones reads it."""
    return network.is_fp32(tensor_name) and (
        any(info.name == tensor_name for info in network.outputs)
        or any(reader not in layer_names for reader in network.consumers.get(tensor_name, ()))
    )


def _find_quantized_tensors(typed_model: ir.Model, network: Network) -> dict[str, tuple[str, QdqStep]]:
    """Returns the tensor that each Quantize reads, with the effect of the Quantize.

    Each Quantize has two keys: the name of its node and the name of its output.
    """
    quantized_tensors: dict[str, tuple[str, QdqStep]] = {}
    for node in typed_model.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        if value is None or not (step := read_qdq_step(node)).is_constant:
            continue
        while (
            (producer := value.producer()) is not None
            and producer.op_type == "Cast"
            and producer.inputs[0] is not None
            and not network.has_tensor(value.name or "")
        ):
            value = producer.inputs[0]
        quantized_tensors |= dict.fromkeys((node.name or "", node.outputs[0].name or ""), (value.name or "", step))
    return quantized_tensors


def _read_output_strides(inspector_json: str) -> dict[str, tuple[int, ...]]:
    """Reads the strides, in elements, of engine layer outputs that are not in C order, by tensor name.

    Outputs without reported strides are absent.
    """
    strides_by_output = {}
    entries: Sequence[Any] = json.loads(inspector_json, strict=False)["Layers"]
    for tensor in (output for entry in entries if isinstance(entry, dict) for output in entry.get("Outputs", ())):
        sizes, strides = tensor.get("Dimensions"), tensor.get("Strides")
        if isinstance(sizes, list) and isinstance(strides, list) and len(sizes) == len(strides):
            plain = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
            if any(
                size != 1 and output != expected for size, output, expected in zip(sizes, strides, plain, strict=True)
            ):
                strides_by_output[str(tensor.get("Name", ""))] = tuple(map(int, strides))
    return strides_by_output


def decode_kernel_result(
    debug_tensors: Mapping[str, DebugTensor], kernel_result: KernelResult, shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Decodes the output of a kernel into float32 arrays in the shape of the network's tensor. It returns one array for
    each possible memory order and output.

    Each possible output is decoded in memory order. If the inspector reports other strides that fit, it is also decoded
    with these. Outputs of another size, and quantized values without a scale, are left out.

    TensorRT does not report the memory order of a debug tensor, or which output contains which tensor. A wrong choice
    is as different from the reference as noise.
    """
    return [
        reading
        for output in kernel_result.possible_outputs
        if output.tensor in debug_tensors
        for reading in _read_debug_tensor(debug_tensors[output.tensor], output, shape)
    ]


def _read_debug_tensor(
    debug_tensor: DebugTensor, kernel_output: KernelOutput, shape: tuple[int, ...]
) -> list[np.ndarray]:
    values = debug_tensor.values
    if values.size != int(np.prod(shape)) or (debug_tensor.precision in QUANTIZED_TYPES) is (
        kernel_output.quantize_step is None
    ):
        return []
    arrays = [values]
    strides = kernel_output.strides
    if (
        strides is not None
        and len(strides) == values.ndim
        and all(values.shape)
        and 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) <= values.size
    ):
        flat = np.ascontiguousarray(values)
        arrays.append(
            np.lib.stride_tricks.as_strided(
                flat, values.shape, tuple(stride * flat.itemsize for stride in strides), writeable=False
            )
        )
    step, readings = kernel_output.quantize_step, [array.reshape(shape) for array in arrays]
    if step is None or step.scale is None:
        return readings
    return [reading * broadcast_scales(step.scale, shape, step.axis, step.block_size) for reading in readings]
