"""What a parser and a builder warn of, by the group that it is about.

Warnings name layers, fused layers, weights or tensors; what names none of the network's stays in the log alone. Some
are known and said in few words, by their texts in TensorRT 8.5 to 10 (NVIDIA/TensorRT issues 2462, 3692, 3748;
Linaom1214/TensorRT-For-YOLO-Series issue 56), or of TensorRT-RTX 1.7; all others are quoted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from trt_tui.core.engines.inspector import ADDED_NODE_SUFFIX
from trt_tui.core.network.layers import Layer, NetworkOutline

LAYERNORM_WARNING_PREFIX = "Detected layernorm nodes in FP16"
"""How a warning begins whose names come in the next verbose message from TensorRT 9 on, and in itself before."""

_KNOWN_WARNINGS = (
    (re.compile(r"Weights \[name=(?P<named>.*)\] had the following issues when converted to (?P<type>\w+):[\s-]*"
                r"(?P<what>.*?)\.?$", re.S), "its weights in {type}: {what}"),
    (re.compile(r"Missing scale and zero-point for tensor (?P<tensor>.*), expect fall back"),
     "no range for {tensor}: its producer and consumers fall back from INT8"),
    (re.compile(r"No implementation of layer (?P<named>.*) obeys the requested constraints"),
     "no implementation has its precision: TensorRT took the fastest"),
    (re.compile(LAYERNORM_WARNING_PREFIX + r"[.:]\s*(?P<named>.*)", re.S),
     "a LayerNorm in FP16, which may overflow after an attention"),
    (re.compile(r"^(?P<named>.+): IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension"),
     "{named} reshapes to a computed size that might be 0: resolved at run time, it may take much memory"),
)
_IGNORED_WARNING_PATTERN = re.compile(r"^Make sure input .* has Int64 binding")
"""What is so for every run of this program."""

_SOURCE_LOCATION_PATTERN = re.compile(r"^\w+\.(?:cpp|h|cu):\d+:\s*")
_TOKEN_PATTERN = re.compile(r"[^\s,()\[\]{}|=\"'`;]+")
_WEIGHT_SUFFIX_PATTERN = re.compile(r"\.(?:weight|bias|kernel)$|_output$")
_MAX_READER_GROUPS = 3
"""Of how many rows a layer in no group is told: one of shape arithmetic may be read throughout the network."""

_MAX_QUOTED_CHARACTERS = 160
"""Characters of a warning that is quoted."""


def assign_warnings_to_groups(messages: Iterable[tuple[str, str]],
                              network: NetworkOutline) -> dict[str, tuple[str, ...]]:
    """The warnings that name something of each group, each once, by the group's name.

    Args:
        messages: Levels and texts, in order.
    """
    warnings_by_group: dict[str, dict[str, None]] = {}
    groups_by_name: dict[str, tuple[str, ...]] | None = None
    for text in dict.fromkeys(text for text in _join_continued_warnings(messages)
                              if not _IGNORED_WARNING_PATTERN.search(text)):
        groups_by_name = _map_names_to_groups(network) if groups_by_name is None else groups_by_name
        for pattern, template in _KNOWN_WARNINGS:
            if (match := pattern.search(text)) is not None:
                parts = match.groupdict()
                warning = template.format_map(parts)
                tensor = parts.get("tensor")
                groups = groups_by_name.get(ADDED_NODE_SUFFIX.sub("", tensor),
                                            ()) if tensor else _find_groups_in_warning(parts["named"], groups_by_name)
                break
        else:
            warning = text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS - 1]}…"
            groups = _find_groups_in_warning(
                text,
                {name: names_groups
                 for name, names_groups in groups_by_name.items()
                 if _is_distinctive_name(name)})
        for group in groups:
            warnings_by_group.setdefault(group, {})[warning] = None
    return {group: tuple(warnings) for group, warnings in warnings_by_group.items()}


def _join_continued_warnings(messages: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The texts of warnings, one that goes on with the next message together with it."""
    pending_text = ""
    for severity, text in messages:
        text = _SOURCE_LOCATION_PATTERN.sub("", text.strip())
        if severity == "warning" and pending_text and text.startswith("-"):
            pending_text = f"{pending_text} {text}"
            continue
        if pending_text:
            yield pending_text
        pending_text = text if severity == "warning" else ""
    if pending_text:
        yield pending_text


def _map_names_to_groups(network: NetworkOutline) -> dict[str, tuple[str, ...]]:
    """The groups of each layer, of each tensor that a layer makes or reads, and of each weight; of a layer in no group
    those behind it."""
    groups_by_name: dict[str, dict[str, None]] = {}
    for layer in network.layers:
        group = network.find_group(layer.name)
        if group is not None:
            for tensor in (*layer.outputs, *layer.inputs):
                groups_by_name.setdefault(tensor, {})[group.name] = None
    readers: dict[str, list[Layer]] = {}
    for layer in network.layers:
        for tensor in dict.fromkeys(layer.inputs):
            readers.setdefault(tensor, []).append(layer)
    groups_behind: dict[str, dict[str, None]] = {}
    for layer in reversed(network.layers):  # a layer's name stands for itself alone, also where a tensor's is the same
        if (group := network.find_group(layer.name)) is not None:
            groups_by_name[layer.name] = groups_behind[layer.name] = {group.name: None}
        else:  # it copies or computes a shape, and has no row: those that take what it makes have
            after = (name for tensor in layer.outputs for reader in readers.get(tensor, ())
                     for name in groups_behind.get(reader.name, ()))
            groups_behind[layer.name] = dict.fromkeys(islice(after, _MAX_READER_GROUPS))
            groups_by_name[layer.name] = groups_behind[layer.name] or {
                name: None for tensor in layer.inputs for name in groups_by_name.get(tensor, ())}
    return {name: tuple(groups) for name, groups in groups_by_name.items() if name and groups}


def _is_distinctive_name(name: str) -> bool:
    """Whether a name is none that any text may hold: not a number, not a plain word."""
    return len(name) >= 3 and not name.isalpha() and not name.isdigit()


def _find_groups_in_warning(warning_text: str, groups_by_name: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The groups whose names a text holds, in the order of the text."""
    named_groups: dict[str, None] = {}
    for token in _TOKEN_PATTERN.findall(warning_text):
        for form in (token, token.rstrip(".:"), _WEIGHT_SUFFIX_PATTERN.sub("", token.rstrip(".:"))):
            if (groups := groups_by_name.get(form) or groups_by_name.get(ADDED_NODE_SUFFIX.sub("", form))) is not None:
                named_groups.update(dict.fromkeys(groups))
                break
    return tuple(named_groups)
