"""What a parser and a builder warn of, by the group that it is about.

Warnings name layers, fused layers, weights or tensors; what names none of the network's stays in the log alone. Some
are known and said in few words, by their texts in TensorRT 8.5 to 10 (NVIDIA/TensorRT issues 2462, 3692, 3748;
Linaom1214/TensorRT-For-YOLO-Series issue 56), or of TensorRT-RTX 1.7; all others are quoted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from trt_tui.core.engines.inspector import ADDED
from trt_tui.core.network.layers import Layer, Outline

LAYERNORMS = "Detected layernorm nodes in FP16"
"""How a warning begins whose names come in the next verbose message from TensorRT 9 on, and in itself before."""

_KNOWN = (
    (re.compile(r"Weights \[name=(?P<named>.*)\] had the following issues when converted to (?P<type>\w+):[\s-]*"
                r"(?P<what>.*?)\.?$", re.S), "its weights in {type}: {what}"),
    (re.compile(r"Missing scale and zero-point for tensor (?P<tensor>.*), expect fall back"),
     "no range for {tensor}: what reads or makes it falls back from INT8"),
    (re.compile(r"No implementation of layer (?P<named>.*) obeys the requested constraints"),
     "no implementation has its precision: the fastest was taken"),
    (re.compile(LAYERNORMS + r"[.:]\s*(?P<named>.*)", re.S),
     "a LayerNorm in FP16, which may overflow behind an attention"),
    (re.compile(r"^(?P<named>.+): IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension"),
     "{named} reshapes to a computed size that might be 0: resolved at run time, it may take much memory"),
)
_OF_COURSE = re.compile(r"^Make sure input .* has Int64 binding")
"""What is so for every run of this program."""

_PLACE = re.compile(r"^\w+\.(?:cpp|h|cu):\d+:\s*")
_TOKEN = re.compile(r"[^\s,()\[\]{}|=\"'`;]+")
_PART = re.compile(r"\.(?:weight|bias|kernel)$|_output$")
_BEHIND = 3
"""Of how many rows a layer in no group is told: one of shape arithmetic may be read throughout the network."""

_MOST = 160
"""Characters of a warning that is quoted."""


def remarks(printed: Iterable[tuple[str, str]], network: Outline) -> dict[str, tuple[str, ...]]:
    """The warnings that name something of each group, each once, by the group's name.

    Args:
        printed: Levels and texts, in order.
    """
    found: dict[str, dict[str, None]] = {}
    names: dict[str, tuple[str, ...]] | None = None
    for text in dict.fromkeys(text for text in _joined(printed) if not _OF_COURSE.search(text)):
        names = _names(network) if names is None else names
        for pattern, words in _KNOWN:
            if (match := pattern.search(text)) is not None:
                parts = match.groupdict()
                said = words.format_map(parts)
                tensor = parts.get("tensor")
                groups = names.get(ADDED.sub("", tensor), ()) if tensor else _named(parts["named"], names)
                break
        else:
            said = text if len(text) <= _MOST else f"{text[:_MOST - 1]}…"
            groups = _named(text, {name: of for name, of in names.items() if _tells(name)})
        for group in groups:
            found.setdefault(group, {})[said] = None
    return {group: tuple(told) for group, told in found.items()}


def _joined(printed: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The texts of warnings, one that goes on with the next message together with it."""
    open_text = ""
    for level, text in printed:
        text = _PLACE.sub("", text.strip())
        if level == "warning" and open_text and text.startswith("-"):
            open_text = f"{open_text} {text}"
            continue
        if open_text:
            yield open_text
        open_text = text if level == "warning" else ""
    if open_text:
        yield open_text


def _names(network: Outline) -> dict[str, tuple[str, ...]]:
    """The groups of each layer, of each tensor that a layer makes or reads, and of each weight; of a layer in no group
    those behind it."""
    found: dict[str, dict[str, None]] = {}
    for layer in network.layers:
        group = network.group_of(layer.name)
        if group is not None:
            for tensor in (*layer.outputs, *layer.inputs):
                found.setdefault(tensor, {})[group.name] = None
    readers: dict[str, list[Layer]] = {}
    for layer in network.layers:
        for tensor in dict.fromkeys(layer.inputs):
            readers.setdefault(tensor, []).append(layer)
    behind: dict[str, dict[str, None]] = {}
    for layer in reversed(network.layers):  # a layer's name stands for itself alone, also where a tensor's is the same
        if (group := network.group_of(layer.name)) is not None:
            found[layer.name] = behind[layer.name] = {group.name: None}
        else:  # it copies or computes a shape, and has no row: those that take what it makes have
            after = (name for tensor in layer.outputs for reader in readers.get(tensor, ())
                     for name in behind.get(reader.name, ()))
            behind[layer.name] = dict.fromkeys(islice(after, _BEHIND))
            found[layer.name] = behind[layer.name] or {
                name: None for tensor in layer.inputs for name in found.get(tensor, ())}
    return {name: tuple(groups) for name, groups in found.items() if name and groups}


def _tells(name: str) -> bool:
    """Whether a name is none that any text may hold: not a number, not a plain word."""
    return len(name) >= 3 and not name.isalpha() and not name.isdigit()


def _named(text: str, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The groups whose names a text holds, in the order of the text."""
    found: dict[str, None] = {}
    for token in _TOKEN.findall(text):
        for form in (token, token.rstrip(".:"), _PART.sub("", token.rstrip(".:"))):
            if (groups := names.get(form) or names.get(ADDED.sub("", form))) is not None:
                found.update(dict.fromkeys(groups))
                break
    return tuple(found)
