"""The ranges that a user can request, and the names by which a user can select tensors for them.

A range is an amax, a range method, a percentile, or the mean of the largest values.
``top5-mean`` is the mean of the five largest magnitudes over all samples. It is below the amax if a few outliers
determine the amax. ``p99.9`` is the 99.9th percentile of all magnitudes.
"""

import fnmatch
import re

from trt_tui.core.calibration.calibration import LARGEST_VALUE_COUNT, RANGE_METHODS, TensorStats, list_range_methods
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.quantized_types import MAX_AMAX, QuantizedType
from trt_tui.errors import InputError
from trt_tui.formatting import find_similar_names, suggestion_question

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)", re.IGNORECASE)
_TOP_MEAN = re.compile(r"top(\d+)-mean", re.IGNORECASE)


def parse_amax(text: str) -> float | None:
    """Parses a range that a user entered. Returns the amax; None if the text is a range method, a percentile or a mean.

    `resolve_amax_text` resolves the texts for which the result is None.

    Raises:
        InputError: The text is none of these, the number is negative or not finite, or the percentile or mean is not
            among the measured ones.
    """
    try:
        amax = float(text)
    except ValueError:
        if not is_data_dependent(text):
            raise InputError(
                f"{text!r} is not a valid range",
                "it is neither a number nor a method that computes one",
                f"Give an amax like 2.5, a method ({', '.join(RANGE_METHODS)}), p99.9 or top5-mean.",
            ) from None
        return None
    if not 0 <= amax <= MAX_AMAX:
        raise InputError(
            f"{text} is not a valid range", "an amax is a number from 0 to the largest FP32 value", "Write it like 2.5."
        )
    return amax


def resolve_amax_text(amax_text: str, stats: TensorStats, quantized_type: QuantizedType) -> float:
    """Returns the amax that a text such as ``p99.9`` selects from the statistics of a tensor, in the tensor's own
    units.

    Args:
        amax_text: A text for which `parse_amax` returns None.
        quantized_type: The type that the range is for.

    Raises:
        InputError: The method does not support the quantized type.
    """
    if match := _PERCENTILE.fullmatch(amax_text):
        return stats.magnitude_percentile(float(match[1]))
    if match := _TOP_MEAN.fullmatch(amax_text):
        largest = stats.largest[: int(match[1])]
        return sum(largest) / len(largest) if largest else 0.0
    method = amax_text.lower()
    if method not in list_range_methods(quantized_type):
        raise InputError(
            f"{method} cannot choose a range for {quantized_type.precision.label}",
            "it assumes equal steps",
            f"Use one of {', '.join(list_range_methods(quantized_type))}.",
        )
    return stats.amax_by_range_method(quantized_type.precision)[method]


def is_data_dependent(range_text: str) -> bool:
    """Returns True if a range text needs data: a range method, percentile or mean, but not a number."""
    if match := _PERCENTILE.fullmatch(range_text):
        return 0 < float(match[1]) <= 100
    if match := _TOP_MEAN.fullmatch(range_text):
        return 1 <= int(match[1]) <= LARGEST_VALUE_COUNT
    return range_text.lower() in RANGE_METHODS


def find_named_tensors(network: NetworkOutline, name: str) -> tuple[str, ...]:
    """Returns the tensors with ranges that a name selects, in network order.

    Args:
        name: The name of a tensor. Or the title of a scope or row of the layer tree, which selects all tensors that its
            quantized layers read. Or a pattern of tensor names with ``*`` for any text and ``?`` for one character.
            They are tried in this order.

    Raises:
        InputError: The network has no such tensor or scope, no tensor matches the pattern, or no layer that can be
            quantized reads the tensor.
    """
    tensors = network.calibrated_tensors
    if name in tensors:
        return (name,)
    title_by_group = group_titles(network)
    scope_groups = [group for group in network.groups if f"{title_by_group[group.name]}/".startswith(f"{name}/")]
    if scope_groups:
        scope_tensors = {site.tensor for group in scope_groups for site in group.activation_qdq_sites()}
        if not scope_tensors:
            raise InputError(
                f"{name} has no ranges",
                "no layer in it can be quantized",
                "Name a scope with layers that can run in INT8, FP8 or NVFP4; trt-tui inspect lists them.",
            )
        return tuple(tensor for tensor in tensors if tensor in scope_tensors)
    if network.has_tensor(name):
        raise InputError(
            f"{name} has no range",
            "no quantized layer reads it",
            "Set ranges of tensors that layers in INT8, FP8 or NVFP4 read.",
        )
    is_pattern = "*" in name or "?" in name
    # Of the characters that fnmatch reads, brackets are common in tensor names.
    pattern = re.compile(fnmatch.translate(name.replace("[", "[[]")))
    matches = tuple(tensor for tensor in tensors if pattern.match(tensor)) if is_pattern else ()
    if not matches:
        scopes = dict.fromkeys(
            "/".join(parts[:count])
            for parts in (
                title_by_group[group.name].split("/") for group in network.groups if group.activation_qdq_sites()
            )
            for count in range(1, len(parts) + 1)
        )
        similar_names = find_similar_names(re.sub(r"[*?]+", "", name), [*tensors, *scopes])
        raise InputError(
            f"no tensor that a quantized layer reads matches {name}"
            if is_pattern
            else f"{network.name} has no tensor and no scope {name}",
            suggestion_question(similar_names),
            "Name a tensor, a scope of the layer tree, or a pattern like 'encoder*'; trt-tui inspect lists scopes.",
        )
    return matches
