"""Shapes of inputs: how they are written, and what ``--shapes`` gives."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError

LARGEST_SIZE = (1 << 31) - 1
"""Largest size of one dimension that ``--shapes`` takes."""


@dataclass(frozen=True)
class ShapeRange:
    """The least, usual and largest shape of an input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


_SHAPE = r"\d+(?:x\d+)*"
_RANGE = re.compile(rf"(?P<name>.+?):(?P<min>{_SHAPE}):(?P<opt>{_SHAPE}):(?P<max>{_SHAPE})")
_FIXED = re.compile(rf"(?P<name>.+):(?P<opt>{_SHAPE})")


def parse_shapes(texts: Sequence[str], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Reads ``NAME:MIN:OPT:MAX`` or ``NAME:SHAPE``, shapes like ``1x3x224x224``; names may contain colons.

    Raises:
        InputError: another form, an unknown or repeated input, or shapes that do not fit it or each other.
    """
    by_name = {info.name: info for info in inputs}
    ranges: dict[str, ShapeRange] = {}
    for text in texts:
        matches = [match for match in (_RANGE.fullmatch(text), _FIXED.fullmatch(text)) if match]
        if not matches:
            raise InputError(
                f"Not a shape: {text}",
                "Shapes are given as NAME:MIN:OPT:MAX or NAME:SHAPE.",
                "For example: --shapes input:1x3x224x224:8x3x224x224:32x3x224x224",
            )
        match = next((match for match in matches if match["name"] in by_name), None)
        if match is None:
            raise unknown_input(matches[0]["name"], inputs)
        info = by_name[match["name"]]
        if info.name in ranges:
            raise InputError(f"Shapes of input '{info.name}' are given twice", next_step="Give them once.")
        least, usual, most = (_parse_shape(match.groupdict().get(key) or match["opt"]) for key in ("min", "opt", "max"))
        for shape in (least, usual, most):
            _check_shape(shape, info, text)
        for axis, (low, middle, high) in enumerate(zip(least, usual, most, strict=True)):
            if not low <= middle <= high:
                raise InputError(
                    f"Shapes of input '{info.name}' are out of order in dimension {axis}: {low}, {middle}, {high}",
                    "MIN must not exceed OPT, nor OPT exceed MAX.",
                    f"Correct {text}.",
                )
        ranges[info.name] = ShapeRange(least, usual, most)
    return {**ranges, **_implied(ranges, inputs)}


def further_profiles(texts: Sequence[str], inputs: Sequence[TensorInfo], first: Mapping[str, ShapeRange]
                     ) -> tuple[dict[str, ShapeRange], ...]:
    """Reads profiles beside the first one, each written like ``--shapes`` with commas between inputs.

    Args:
        first: The first profile; inputs that a further one does not name have their shapes of this one.

    Raises:
        InputError: see `parse_shapes`.
    """
    return tuple({**first, **parse_shapes(re.split(r"(?<=\d),", text), inputs)} for text in texts)


def _implied(ranges: Mapping[str, ShapeRange], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Shapes of the other inputs whose open dimensions all have names that inputs with a shape have too."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for info in inputs:
        if info.name in ranges and info.shape is not None:
            one = ranges[info.name]
            sizes |= {size: (least, usual, most) for size, least, usual, most in
                      zip(info.shape, one.min, one.opt, one.max, strict=True) if isinstance(size, str)}
    implied = {}
    for info in inputs:
        open_sizes = [size for size in info.shape or () if not isinstance(size, int)]
        if info.name not in ranges and open_sizes and all(size in sizes for size in open_sizes):
            triples = [(size, size, size) if isinstance(size, int) else sizes[str(size)] for size in info.shape or ()]
            implied[info.name] = ShapeRange(*(tuple(triple[place] for triple in triples) for place in range(3)))
    return implied


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(LARGEST_SIZE + 1 if len(size) > 18 else int(size) for size in text.split("x"))


def _check_shape(shape: tuple[int, ...], info: TensorInfo, text: str) -> None:
    fits = all(0 < size <= LARGEST_SIZE for size in shape) and (
        info.shape is None
        or len(shape) == len(info.shape)
        and all(not isinstance(wanted, int) or size == wanted for size, wanted in zip(shape, info.shape, strict=True))
    )
    if not fits:
        raise InputError(
            f"Shape {shape_text(shape)} does not fit input '{info.name}'",
            (f"The network takes {shape_text(info.shape)}; sizes" if info.shape is not None else "Sizes")
            + f" are from 1 to {LARGEST_SIZE}.",
            f"Correct {text}.",
        )


def first_dimension(info: TensorInfo) -> Dimension:
    """The first dimension of an input; None where it has none or its shape is not known."""
    return info.shape[0] if info.shape else None


def shape_text(shape: Sequence[Dimension]) -> str:
    """A shape as messages have it: ``[1, 3, ?]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def unknown_input(name: str, inputs: Sequence[TensorInfo]) -> InputError:
    """The error of a name that is no input's."""
    return InputError(
        f"The network has no input '{name}'",
        f"It has: {', '.join(info.name for info in inputs)}.",
        "Correct the name.",
    )
