"""Shapes of network inputs: the parser of ``--shapes``, and shapes in messages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError

MAX_DIMENSION_SIZE = (1 << 31) - 1
"""Maximum size of one dimension in ``--shapes``."""


@dataclass(frozen=True)
class ShapeRange:
    """The minimum, optimum and maximum shape of an input in an optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


_SHAPE_PATTERN = r"\d+(?:x\d+)*"
_SHAPE_RANGE = re.compile(
    rf"(?P<name>.+?):(?P<min>{_SHAPE_PATTERN}):(?P<opt>{_SHAPE_PATTERN}):(?P<max>{_SHAPE_PATTERN})")
_FIXED_SHAPE = re.compile(rf"(?P<name>.+):(?P<opt>{_SHAPE_PATTERN})")


def parse_shapes(shape_texts: Sequence[str], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Parses ``NAME:MIN:OPT:MAX`` or ``NAME:SHAPE`` with shapes such as ``1x3x224x224``. Names may contain colons.

    Raises:
        InputError: The text has another form, the input is unknown or repeated, or shapes do not fit the input or each
            other.
    """
    by_name = {info.name: info for info in inputs}
    ranges: dict[str, ShapeRange] = {}
    for text in shape_texts:
        matches = [match for match in (_SHAPE_RANGE.fullmatch(text), _FIXED_SHAPE.fullmatch(text)) if match]
        if not matches:
            raise InputError(
                f"Not a shape: {text}",
                "Shapes are given as NAME:MIN:OPT:MAX or NAME:SHAPE.",
                "For example: --shapes input:1x3x224x224:8x3x224x224:32x3x224x224",
            )
        match = next((match for match in matches if match["name"] in by_name), None)
        if match is None:
            raise unknown_input_error(matches[0]["name"], inputs)
        info = by_name[match["name"]]
        if info.name in ranges:
            raise InputError(f"Shapes of input '{info.name}' are given twice", next_step="Name them once.")
        min_shape, opt_shape, max_shape = (_parse_shape(match.groupdict().get(key) or match["opt"])
                                           for key in ("min", "opt", "max"))
        for shape in (min_shape, opt_shape, max_shape):
            _check_shape(shape, info, text)
        for axis, (low, middle, high) in enumerate(zip(min_shape, opt_shape, max_shape, strict=True)):
            if not low <= middle <= high:
                raise InputError(
                    f"Shapes of input '{info.name}' are out of order in dimension {axis}: {low}, {middle}, {high}",
                    "MIN must not exceed OPT, nor OPT exceed MAX.",
                    f"Correct {text}.",
                )
        ranges[info.name] = ShapeRange(min_shape, opt_shape, max_shape)
    return {**ranges, **_infer_shape_ranges(ranges, inputs)}


def parse_additional_profiles(profile_texts: Sequence[str], inputs: Sequence[TensorInfo],
                              first_profile: Mapping[str, ShapeRange]) -> tuple[dict[str, ShapeRange], ...]:
    """Parses the optimization profiles after the first, each written like ``--shapes`` with commas between inputs.

    Args:
        first_profile: The first profile. Inputs that an additional profile does not name keep their shapes from it.

    Raises:
        InputError: The errors of `parse_shapes`.
    """
    return tuple({**first_profile, **parse_shapes(re.split(r"(?<=\d),", text), inputs)} for text in profile_texts)


def _infer_shape_ranges(known_ranges: Mapping[str, ShapeRange], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Infers the shape ranges of inputs whose dynamic dimensions all share their names with inputs that have a shape
    range."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for info in inputs:
        if info.name in known_ranges and info.shape is not None:
            input_range = known_ranges[info.name]
            sizes |= {
                size: (min_size, opt_size, max_size)
                for size, min_size, opt_size, max_size in zip(info.shape, input_range.min, input_range.opt,
                                                              input_range.max, strict=True)
                if isinstance(size, str)
            }
    implied = {}
    for info in inputs:
        open_sizes = [size for size in info.shape or () if not isinstance(size, int)]
        if info.name not in known_ranges and open_sizes and all(size in sizes for size in open_sizes):
            triples = [(size, size, size) if isinstance(size, int) else sizes[str(size)] for size in info.shape or ()]
            implied[info.name] = ShapeRange(*(tuple(triple[shape_index]
                                                    for triple in triples)
                                              for shape_index in range(3)))
    return implied


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(MAX_DIMENSION_SIZE + 1 if len(size) > 18 else int(size) for size in text.split("x"))


def _check_shape(shape: tuple[int, ...], input_info: TensorInfo, text: str) -> None:
    fits = all(0 < size <= MAX_DIMENSION_SIZE
               for size in shape) and (input_info.shape is None or len(shape) == len(input_info.shape)
                                       and all(not isinstance(expected_size, int) or size == expected_size
                                               for size, expected_size in zip(shape, input_info.shape, strict=True)))
    if not fits:
        raise InputError(
            f"Shape {shape_text(shape)} does not fit input '{input_info.name}'",
            (f"The network takes {shape_text(input_info.shape)}; sizes" if input_info.shape is not None else "Sizes")
            + f" are from 1 to {MAX_DIMENSION_SIZE}.",
            f"Correct {text}.",
        )


def first_dimension(input_info: TensorInfo) -> Dimension:
    """Returns the first dimension of an input; None if the input is a scalar or its shape is unknown."""
    return input_info.shape[0] if input_info.shape else None


def shape_text(shape: Sequence[Dimension]) -> str:
    """Returns a shape as text for messages, such as ``[1, 3, ?]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def unknown_input_error(name: str, inputs: Sequence[TensorInfo]) -> InputError:
    """Returns the error for a name that is not an input of the network."""
    return InputError(
        f"The network has no input '{name}'",
        f"It has: {', '.join(info.name for info in inputs)}.",
        "Correct the name.",
    )
