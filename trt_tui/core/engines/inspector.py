"""What TensorRT made of a network: the engine layers that its inspector lists, and the ONNX nodes they stand for.

The inspector's JSON differs by release: tensors have a ``Format/Datatype`` up to TensorRT 10, a ``Datatype`` and a
``Format`` from 11 on. ``Metadata`` names the ONNX nodes ("[ONNX Layer: conv1]", one after the other with a control
character between); if it is empty, the engine layer's own name tells which nodes were fused into it ("conv1 + relu1",
"PWN(mul1)", "{ForeignNode[first...last]}").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.budget import reading_budget

COMPUTE, REFORMAT, QDQ, IDLE = "compute", "reformat", "qdq", "idle"
"""Kinds of engine layers: those that compute, that change a layout or type, that are unfused Q/DQ, and idle ones."""

_LAYER_BEGINS = "[ONNX Layer: "
_LAYER_ENDS = re.compile(r"(.*?)\](?=[\x1e\x1f;]|\s*(?:\[|$))")
REGION = re.compile(r"\{ForeignNode\[((?:(?!\{ForeignNode\[).)*?)\]\}")
_SEPARATORS = re.compile(r" \+ | \|\| |, ")
_COPIES_BACKWARDS = re.compile(r"(?:\d+_enolc_|\d+_\d+lym_|tuptuo_ypoc_|tupni_ypoc_|\d+:)*")
"""Endings of copies' names, read from the end: forwards each place of a long name would be tried as their beginning."""
_MAX_ADDED = 8
"""Endings of added nodes behind a tensor's name; the lowerings add two at most."""
ADDED = re.compile(r"(?:__(?:(?:fp16|bf16|fp32)__)?(?:q|dq|fp16|bf16|fp32|clamped|output)|_quantized"
                   r"|_DequantizeLinear_Output)(?:_\d+)?$")
_QUANTIZING = re.compile(r"(?:__d?q|_quantized|_DequantizeLinear_Output)(?:_\d+)?$")
_LIGHT = ("scale", "pointwise", "pointwisev2", "cast", "kgen")
"""Types of the engine layers that unfused Q, DQ and Casts become."""

_MHA = re.compile(r"_gemm_mha|_fmha|fused_mha")
"""Names of the kernels that compute an attention as one."""

_MOVES = re.compile(r"__myl_(?:Tran|Resh|Move|Conc|Cast|Slic|Copy)+_")
"""Names of generated kernels that only move values or change their type."""

_PROFILE = re.compile(r" \[profile [1-9]\d*\]")
_PART = re.compile(r"_myl(\d+)_\d+$")
"""Another profile's layer; the number of the region that a layer of a region is of."""

_Typed = tuple[str, "Precision | None"]
"""A tensor's name and type."""

_TYPES = ((re.compile(r"(?<!u)int8\b", re.I), Precision.INT8), (re.compile(r"(?<!u)int4\b", re.I), Precision.INT4),
          (re.compile(r"fp8|float8", re.I), Precision.FP8), (re.compile(r"bf16|bfloat", re.I), Precision.BF16),
          (re.compile(r"half|fp16|float16", re.I), Precision.FP16),
          (re.compile(r"fp32|float(?!8|4)", re.I), Precision.FP32))


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        name: As TensorRT names it; its profiler reports times under this name.
        type: TensorRT's word for it, like "CaskConvolution".
        kind: One of the kinds of this module.
        precision: What it computes in, by the types of its inputs and weights; None if these do not show it.
        nodes: Names of the network's layers that it stands for, as far as TensorRT names them.
        region: A fused region of many nodes, about whose inside TensorRT says nothing.
        tactic: The kernel's name, "" if it is not given.
        ms: Measured time of one run in milliseconds, with the profiler attached; None if it was not measured.
        reads: Names of the tensors that it reads; ``takes`` their types, None where it is none of ours.
        writes: Names of the tensors that it writes; ``gives`` their types.
        prepares: It works on constants alone: what it writes is the same in every run.
        added: Names of the nodes that the lowering has added (Q, DQ, Cast) and that it stands for.
        sums: What its products are summed in, see `trt_tui.core.engines.sources`: of a fused attention, and of the
            others of its name, QK and PV; empty where it is not told.
    """

    name: str
    type: str
    kind: str
    precision: Precision | None
    nodes: tuple[str, ...] = ()
    region: bool = False
    tactic: str = ""
    ms: float | None = None
    reads: tuple[str, ...] = ()
    takes: tuple[Precision | None, ...] = ()
    writes: tuple[str, ...] = ()
    gives: tuple[Precision | None, ...] = ()
    prepares: bool = False
    added: tuple[str, ...] = ()
    sums: tuple[tuple[Precision | None, Precision | None], ...] = ()

    @property
    def is_mha(self) -> bool:
        """Whether it computes an attention as one."""
        return bool(_MHA.search(self.tactic) or _MHA.search(self.name))


@dataclass(frozen=True)
class EngineReport:
    """The layers of one engine and what follows from them."""

    layers: tuple[EngineLayer, ...]

    def count(self, kind: str) -> int:
        """How many layers are of a kind."""
        return sum(layer.kind == kind for layer in self.layers)

    def shares(self) -> dict[str, tuple[int, float | None]]:
        """By precision, lowest first ("?" if unknown): how many layers compute in it, and their share of the time.

        Reformat layers and unfused Q/DQ are listed under names of their own, and count in the time.
        """
        total = sum(layer.ms for layer in self.layers if layer.ms is not None)
        counts: dict[str, int] = {}
        times: dict[str, float] = {}
        for layer in self.layers:
            if layer.kind == IDLE:
                continue
            word = layer.kind if layer.kind != COMPUTE else layer.precision.label if layer.precision else "?"
            counts[word] = counts.get(word, 0) + 1
            times[word] = times.get(word, 0.0) + (layer.ms or 0.0)
        order = ["INT4", "INT8", "FP8", "FP16", "BF16", "FP32", "?", REFORMAT, QDQ]
        return {word: (counts[word], times[word] / total if total > 0 else None)
                for word in sorted(counts, key=order.index)}

    def timed(self, times: Mapping[str, float]) -> EngineReport:
        """The report with the profiler's times, by engine layer name, in milliseconds."""
        return EngineReport(tuple(replace(layer, ms=times.get(layer.name)) for layer in self.layers))


def read_inspector(text: str, network: Outline) -> EngineReport:
    """Reads the JSON of TensorRT's engine inspector (or trtexec's ``--exportLayerInfo``).

    Raises:
        InputError: it is no such JSON, or the engine was built without detailed profiling verbosity.
    """
    with reading_budget("the layer information of an engine", len(text)):
        return _read_inspector(text, network)


def _read_inspector(text: str, network: Outline) -> EngineReport:
    try:
        layers = json.loads(text, strict=False)["Layers"]  # 8.6 leaves the separators of its metadata unescaped
        if layers and not any(isinstance(layer, dict) for layer in layers):
            raise InputError("the engine gives the names of its layers only", "it was built without detailed verbosity",
                             "Build it with trt-tui, or with trtexec --profilingVerbosity=detailed.")
        return report_of(layers, network)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("this is not the layer information of an engine", f"{type(error).__name__}: {error}",
                         "It comes from the engine inspector, or trtexec --exportLayerInfo.") from None


def report_of(entries: Iterable[Mapping[str, Any]], network: Outline) -> EngineReport:
    """The layers of an engine from entries as the inspector's JSON has them, in the order in which they run."""
    names = LayerFinder(network)
    fed = {info.name for info in network.inputs}
    entries = _of_first_profile(list(entries))
    if fed.isdisjoint(str(tensor.get("Name")) for entry in entries for tensor in entry.get("Inputs", ())):
        fed = {str(tensor.get("Name")) for entry in entries for tensor in entry.get("Inputs", ())}
    read = [_layer(entry, names, fed) for entry in entries]
    named = {node for layer in read if not layer.region for node in layer.nodes}
    return EngineReport(tuple(
        replace(layer, nodes=names.region(layer.name, named) or layer.nodes) if layer.region else layer
        for layer in read))


def _of_first_profile(entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The layers for the first optimization profile. Those of others follow, with the profile in the name of each; of
    a region's layers in that of some, and the region's number in all."""
    first = next((entry for entry in entries if _PROFILE.search(str(entry.get("Name", "")))), None)
    if first is None:
        return entries
    part = _PART.search(str(first["Name"]))
    end = next((place for place, entry in enumerate(entries) if entry is first or part is not None and (
        found := _PART.search(str(entry.get("Name", "")))) is not None and found[1] == part[1]), len(entries))
    return entries[:end]


def _layer(entry: Mapping[str, Any], names: LayerFinder, fed: set[str]) -> EngineLayer:
    """One layer.

    Args:
        fed: Names of the tensors that depend on an input so far; what this layer makes of them is added.
    """
    name, kind = entry.get("Name", ""), entry.get("LayerType", "")
    inputs, outputs = ([(str(tensor.get("Name", "")), _type(tensor)) for tensor in entry.get(key, ())]
                       for key in ("Inputs", "Outputs"))
    depends = [index for index, (tensor, _) in enumerate(inputs) if tensor in fed]
    fed.update(tensor for tensor, _ in outputs if depends)
    weights = _word(str((entry.get("Weights") or {}).get("Type", "")))
    region = "ForeignNode" in name and not name.startswith("Reformatting")
    nodes, added = names.read(name, str(entry.get("Metadata", "")))
    word = kind.lower()
    copy = name.startswith("Reformatting CopyNode")
    light = not nodes and word in _LIGHT
    types = [one for _, one in (*inputs, *outputs)]
    if word == "noop":
        which = IDLE
    elif word in ("quantize", "dequantize") or entry.get("Origin") == "QDQ" or light and any(
            map(_QUANTIZING.search, added)):
        which = QDQ
    elif word == "reformat" or copy or light and (added or _MOVES.match(name)):
        which = REFORMAT
    elif word == "constant" or not any((*types, _untold(entry))):
        which = IDLE
    else:
        which = COMPUTE
    if copy:
        nodes = ()  # its name is that of the layer beside it
    return EngineLayer(name, kind, which, _precision(inputs, depends, outputs, weights, region), nodes, region,
                       str(entry.get("TacticName", "") or ""), None, tuple(tensor for tensor, _ in inputs),
                       tuple(one for _, one in inputs), tuple(tensor for tensor, _ in outputs),
                       tuple(one for _, one in outputs), not depends and not copy, added)


def _precision(inputs: Sequence[_Typed], depends: Sequence[int], outputs: Sequence[_Typed],
               weights: Precision | None, region: bool) -> Precision | None:
    """By the weights if they are stored, else by the first float input, else by the outputs; None for a region.

    Args:
        depends: Places of the inputs that are no constants: only these tell, where there are any.
    """
    if region:
        return None
    told = [inputs[index][1] for index in depends] or [one for _, one in inputs]
    coded = [one for one in (Precision.INT8, Precision.FP8) if one in (weights, *told[:1])]
    if coded or Precision.INT4 in (weights, *(one for _, one in inputs)):
        return coded[0] if coded else Precision.INT4
    known = [one for one in (*told, *(one for _, one in outputs)) if one is not None]
    return known[0] if known else weights


def _type(tensor: Mapping[str, Any]) -> Precision | None:
    return _word(_words(tensor))


def _words(tensor: Mapping[str, Any]) -> str:
    return str(tensor.get("Datatype") or tensor.get("Format/Datatype") or "")


def _untold(entry: Mapping[str, Any]) -> bool:
    """Whether types are not given ("N/A due to dynamic shapes"), as when no execution context has set the shapes."""
    return any(_words(tensor).startswith("N/A") for tensor in (*entry.get("Inputs", ()), *entry.get("Outputs", ())))


def _word(text: str) -> Precision | None:
    return next((precision for pattern, precision in _TYPES if pattern.search(text)), None)


class LayerFinder:
    """Finds a network's layers in the names and metadata of engine layers."""

    def __init__(self, network: Outline) -> None:
        self.index = {layer.name: position for position, layer in enumerate(network.layers)}
        self.order = [layer.name for layer in network.layers]
        self.first_use: dict[str, int] = {}
        self.producer: dict[str, int] = {}
        for position, layer in enumerate(network.layers):
            for tensor in layer.inputs:
                self.first_use.setdefault(tensor, position)
            for tensor in layer.outputs:
                self.producer[tensor] = position

    def read(self, name: str, metadata: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The layers named, and the nodes of the lowering that are named."""
        pieces = metadata.split(_LAYER_BEGINS)[1:]
        tokens = [match[1] for piece in pieces if (match := _LAYER_ENDS.match(piece)) is not None] or [
            token for part in _SEPARATORS.split(REGION.sub("", name)) for token in self._unwrapped(part)]
        known = [self._known(token) for token in tokens]
        others = [token for token, layer in zip(tokens, known, strict=True) if layer is None]
        return (tuple(dict.fromkeys(layer for layer in known if layer is not None)),
                tuple(dict.fromkeys(token for token in others if ADDED.search(token))))

    def region(self, name: str, named: set[str]) -> tuple[str, ...]:
        """The layers from the first to the last one in a region's name, without those that another engine layer names.

        If an end is no layer (a constant that TensorRT made, for example), that side is open.
        """
        match = REGION.search(name)
        if match is None:
            return ()
        first, _, last = match[1].partition("...")
        start, end = self.place(first), self.place(last or first)
        start, end = 0 if start is None else start, len(self.order) - 1 if end is None else end
        return tuple(layer for layer in self.order[min(start, end):max(start, end) + 1] if layer not in named)

    def place(self, name: str) -> int | None:
        """The position of a layer, or of the one that computes or reads a tensor; None if it is neither."""
        known = self._known(name)
        if known is not None:
            return self.index[known]
        tensor = name
        for _ in range(_MAX_ADDED):
            tensor = ADDED.sub("", tensor)
        return self.producer.get(tensor, self.first_use.get(tensor))

    def _known(self, token: str) -> str | None:
        if token in self.index:
            return token
        copied = _COPIES_BACKWARDS.match(token[::-1])
        original = token[:len(token) - copied.end()] if copied is not None else token
        return original if original in self.index else None

    @staticmethod
    def _unwrapped(part: str) -> Iterable[str]:
        part = part.strip()
        yield part
        bare = re.sub(r"^(?:PWN\(|\()+", "", part)
        if bare != part:
            yield bare
        yield bare.rstrip(")")
