"""Warnings of TensorRT's parser and builder, assigned to the fusion groups that they concern.

A warning names layers, fused layers, weights or tensors. A warning that names none of the network's stays in the log.
Some warnings are recognised and shortened, by their texts in TensorRT 8.5 to 10 (NVIDIA/TensorRT issues 2462, 3692,
3748; Linaom1214/TensorRT-For-YOLO-Series issue 56) and in TensorRT-RTX 1.7. All others are quoted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from trt_tui.core.engines.inspector import ADDED_NODE_SUFFIX
from trt_tui.core.network.layers import Layer, NetworkOutline
from trt_tui.formatting import counted_noun_text

LAYERNORM_WARNING_PREFIX = "Detected layernorm nodes in FP16"
"""Beginning of the warning about LayerNorms in FP16. TensorRT 8 names them in the warning, 9 and later in the next
verbose message."""

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
"""A warning that applies to every execution of trt-tui."""

_SOURCE_LOCATION_PATTERN = re.compile(r"^\w+\.(?:cpp|h|cu):\d+:\s*")
_TOKEN_PATTERN = re.compile(r"[^\s,()\[\]{}|=\"'`;]+")
_WEIGHT_SUFFIX_PATTERN = re.compile(r"\.(?:weight|bias|kernel)$|_output$")
_MAX_READER_GROUPS = 3
"""Maximum number of groups for a warning about a layer in no group. A layer of shape arithmetic may be read throughout
the network."""

MAX_LISTED_WARNINGS = 5
"""The maximum number of listed warnings of the parser and the builder in one run."""

_MAX_QUOTED_CHARACTERS = 160
"""Maximum number of characters of a quoted warning."""


def assign_warnings_to_groups(messages: Iterable[tuple[str, str]],
                              network: NetworkOutline) -> dict[str, tuple[str, ...]]:
    """Returns the warnings that concern each fusion group, each warning once, by group name.

    Args:
        messages: Levels and texts of the messages, in order.
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


def builder_warning_lines(warnings: Mapping[str, Sequence[str]], noun: str = "warning") -> list[str]:
    """Returns the first warnings of the parser and the builder, each with the fusion group that it concerns.

    Args:
        noun: The word for one of the texts.
    """
    lines = [f"  {name}: {text}" for name, texts in warnings.items() for text in texts]
    more_count = len(lines) - MAX_LISTED_WARNINGS
    return lines[:MAX_LISTED_WARNINGS] + ([f"  and {counted_noun_text(more_count, f'more {noun}')}"]
                                          if more_count > 0 else [])


def short_message_lines(messages: Sequence[tuple[str, str]], network: NetworkOutline) -> list[str]:
    """Returns the short form of the messages of one build: the warnings that concern fusion groups, and the number of
    all errors and warnings.

    Args:
        messages: Levels and texts of the messages, in order.
    """
    warnings = builder_warning_lines(assign_warnings_to_groups(messages, network))
    counts = [(len({text for severity, text in messages if severity == level}), level)
              for level in ("error", "warning")]
    printed_text = " and ".join(counted_noun_text(count, level) for count, level in counts if count)
    return [*(["warnings of parser and builder:", *warnings] if warnings else []),
            *([f"TensorRT printed {printed_text} during the build; --verbose shows them."] if printed_text else [])]


def _join_continued_warnings(messages: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the texts of warnings. A warning that continues in the next message is joined with it."""
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
    """Maps the names of layers, tensors and weights to the fusion groups that a warning about them concerns.

    A tensor belongs to the groups that compute or read it. A layer in no group belongs to the groups that read its
    results.
    """
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
    for layer in reversed(network.layers):  # the name of a layer means that layer, even if a tensor has the same name
        if (group := network.find_group(layer.name)) is not None:
            groups_by_name[layer.name] = groups_behind[layer.name] = {group.name: None}
        else:  # a copy or shape arithmetic has no group: the groups that read its results count
            after = (name for tensor in layer.outputs for reader in readers.get(tensor, ())
                     for name in groups_behind.get(reader.name, ()))
            groups_behind[layer.name] = dict.fromkeys(islice(after, _MAX_READER_GROUPS))
            groups_by_name[layer.name] = groups_behind[layer.name] or {
                name: None for tensor in layer.inputs for name in groups_by_name.get(tensor, ())}
    return {name: tuple(groups) for name, groups in groups_by_name.items() if name and groups}


def _is_distinctive_name(name: str) -> bool:
    """Returns True if a name cannot occur in a text by chance: it is neither a number nor a plain word."""
    return len(name) >= 3 and not name.isalpha() and not name.isdigit()


def _find_groups_in_warning(warning_text: str, groups_by_name: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Finds the fusion groups whose names occur in the text of a warning, in the order of the text."""
    named_groups: dict[str, None] = {}
    for token in _TOKEN_PATTERN.findall(warning_text):
        for form in (token, token.rstrip(".:"), _WEIGHT_SUFFIX_PATTERN.sub("", token.rstrip(".:"))):
            if (groups := groups_by_name.get(form) or groups_by_name.get(ADDED_NODE_SUFFIX.sub("", form))) is not None:
                named_groups.update(dict.fromkeys(groups))
                break
    return tuple(named_groups)
