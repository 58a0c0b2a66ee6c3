"""What a plan of TensorRT-RTX says of the sums of its products, which no listing has (as plans of 1.7.1 for SM89 do).

It holds the source of its attention kernels: `fmha::Ampere_hmma_fp32_traits` stands for QK where its Softmax is FP32,
and for QK or PV where the product is. Kernels whose sums differ may have one name. Of a MatMul it says
`accumulation_type=2` where it is summed in FP32, and 0 where that is left to the kernel; of a Conv nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.precision import Precision

AccumulatorPair = tuple["Precision | None", "Precision | None"]
"""What QK and PV of an attention are summed in, or any other product twice; None where it is not known."""

_TRAITS_PREFIX = b"Kernel_traits"
_TRAITS_PATTERN = re.compile(rb"\w{0,200}<\s*fmha::(\w+)_traits,\s*fmha::(\w+)_traits,")
_KERNEL_NAME_PATTERN = re.compile(rb"__global__ void (\w+)\(")
_MAX_SOURCE_BYTES = 1 << 16
"""Bytes of source behind the traits within which the kernel's name stands."""

_PRODUCT_PREFIX = b"fully_connected={"
_FP32_ACCUMULATOR_PATTERN = re.compile(rb" accumulation_type=2 ")
_ONNX_LAYER_PATTERN = re.compile(rb"\[ONNX Layer: ((?:(?!\[ONNX Layer: ).)*?)\]")


@dataclass(frozen=True)
class PlanAccumulators:
    """What the products of a plan are summed in.

    Attributes:
        attention_accumulators: By tactic, of each attention kernel of that name; which is which is not told.
        fp32_nodes: Nodes of the products that are summed in FP32; of others it is not told.
    """

    attention_accumulators: Mapping[str, tuple[AccumulatorPair, ...]] = field(default_factory=dict)
    fp32_nodes: frozenset[str] = frozenset()


def read_plan_accumulators(plan_bytes: bytes) -> PlanAccumulators:
    """Reads what a plan says; nothing where it says nothing of the kind."""
    pairs_by_kernel: dict[str, list[AccumulatorPair]] = {}
    position = -1
    while (position := plan_bytes.find(_TRAITS_PREFIX, position + 1)) >= 0:
        traits = _TRAITS_PATTERN.match(plan_bytes, position + len(_TRAITS_PREFIX))
        name = _KERNEL_NAME_PATTERN.search(plan_bytes, traits.end(),
                                           traits.end() + _MAX_SOURCE_BYTES) if traits is not None else None
        if traits is not None and name is not None:
            pairs_by_kernel.setdefault(name[1].decode("ascii"), []).append(
                (_parse_accumulator_type(traits[1]), _parse_accumulator_type(traits[2])))
    nodes: set[str] = set()
    while (position := plan_bytes.find(_PRODUCT_PREFIX, position + 1)) >= 0:
        end = plan_bytes.find(b"\n", position, position + _MAX_SOURCE_BYTES)
        if _FP32_ACCUMULATOR_PATTERN.search(plan_bytes, position, end if end >= 0 else position):
            nodes.update(
                name.decode("utf-8", "surrogateescape")
                for name in _ONNX_LAYER_PATTERN.findall(plan_bytes, position, end))
        position = max(position, end - 1)  # the rest of the line was read
    return PlanAccumulators({name: tuple(sorted(pairs, key=str))
                             for name, pairs in pairs_by_kernel.items()}, frozenset(nodes))


def find_common_accumulators(accumulator_pairs: tuple[AccumulatorPair, ...]) -> AccumulatorPair:
    """What all kernels of a name sum in; not known where they differ."""
    return accumulator_pairs[0] if len(set(accumulator_pairs)) == 1 else (None, None)


def _parse_accumulator_type(traits_name: bytes) -> Precision | None:
    """What products of the name of their traits are summed in: ``Ampere_hmma_fp16``."""
    return {b"fp16": Precision.FP16, b"fp32": Precision.FP32}.get(traits_name.rpartition(b"_")[2])
