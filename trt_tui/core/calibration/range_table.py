"""Ranges by tensor, with those that a method chooses otherwise for another code type than INT8."""

from collections.abc import Mapping

from trt_tui.core.quantized_types import QuantizedType


class RangeTable(dict[str, float]):
    """The calibrated amax by tensor name, in the tensors' own units, for INT8 and every code type without its own.

    Attributes:
        by_type: The amax by tensor name, by the precision whose codes they are for.
    """

    def __init__(self, ranges: Mapping[str, float], ranges_by_type: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__(ranges)
        self.by_type = {precision: dict(type_ranges) for precision, type_ranges in ranges_by_type.items()}


def select_ranges_for_type(ranges: Mapping[str, float], quantized_type: QuantizedType) -> Mapping[str, float]:
    """The amax by tensor name for codes of a type."""
    type_ranges = ranges.by_type.get(quantized_type.precision.value) if isinstance(ranges, RangeTable) else None
    return {**ranges, **type_ranges} if type_ranges else ranges


def override_ranges(ranges: Mapping[str, float], overrides: Mapping[str, float]) -> Mapping[str, float]:
    """These ranges with some replaced; the new ones count for every code type."""
    merged = {**ranges, **overrides}
    if not isinstance(ranges, RangeTable):
        return merged
    return RangeTable(
        merged, {
            precision: {tensor: amax
                        for tensor, amax in type_ranges.items()
                        if tensor not in overrides}
            for precision, type_ranges in ranges.by_type.items()
        })


def ranges_comparison_key(ranges: Mapping[str, float]) -> tuple[object, ...]:
    """All that ranges decide, as something to compare."""
    ranges_by_type = ranges.by_type if isinstance(ranges, RangeTable) else {}
    return (*sorted(ranges.items()), *((precision, *sorted(type_ranges.items()))
                                       for precision, type_ranges in sorted(ranges_by_type.items())))
