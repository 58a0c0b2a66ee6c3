"""Ranges by tensor, with those that a method chooses otherwise for another code type than INT8."""

from collections.abc import Mapping

from trt_tui.core.codes import CodeType


class Ranges(dict[str, float]):
    """The calibrated amax by tensor name, in the tensors' own units, for INT8 and every code type without its own.

    Attributes:
        others: The amax by tensor name, by the precision whose codes they are for.
    """

    def __init__(self, ranges: Mapping[str, float], others: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__(ranges)
        self.others = {precision: dict(own) for precision, own in others.items()}


def for_codes(ranges: Mapping[str, float], code: CodeType) -> Mapping[str, float]:
    """The amax by tensor name for codes of a type."""
    own = ranges.others.get(code.precision.value) if isinstance(ranges, Ranges) else None
    return {**ranges, **own} if own else ranges


def overridden(ranges: Mapping[str, float], known: Mapping[str, float]) -> Mapping[str, float]:
    """These ranges with some replaced; the new ones count for every code type."""
    merged = {**ranges, **known}
    if not isinstance(ranges, Ranges):
        return merged
    return Ranges(merged, {precision: {tensor: amax for tensor, amax in own.items() if tensor not in known}
                           for precision, own in ranges.others.items()})


def stamp(ranges: Mapping[str, float]) -> tuple[object, ...]:
    """All that ranges decide, as something to compare."""
    others = ranges.others if isinstance(ranges, Ranges) else {}
    return (*sorted(ranges.items()), *((precision, *sorted(own.items())) for precision, own in sorted(others.items())))
