"""The accumulator types of products, read from a serialized TensorRT-RTX plan, because no list of engine layers has
them.

The patterns were found in plans of release 1.7.1 for SM89. A plan contains the source of its attention kernels. The
name `fmha::Ampere_hmma_fp32_traits` means, for QK, that its Softmax is FP32, and for QK or PV that the product has an
FP32 accumulator. Kernels with different accumulators can have the same name. For a MatMul a plan contains
`accumulation_type=2` if the accumulator is FP32, and 0 if the kernel chooses it. For a Conv it contains nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.precision import Precision

AccumulatorPair = tuple["Precision | None", "Precision | None"]
"""The accumulators of QK and PV of an attention, or twice that of any other product. None means unknown."""

_TRAITS_PREFIX = b"Kernel_traits"
_TRAITS_PATTERN = re.compile(rb"\w{0,200}<\s*fmha::(\w+)_traits,\s*fmha::(\w+)_traits,")
_KERNEL_NAME_PATTERN = re.compile(rb"__global__ void (\w+)\(")
_MAX_SOURCE_BYTES = 1 << 16
"""Maximum distance in bytes from the traits to the name of the kernel in its source."""

_PRODUCT_PREFIX = b"fully_connected={"
_FP32_ACCUMULATOR_PATTERN = re.compile(rb" accumulation_type=2 ")
_ONNX_LAYER_PATTERN = re.compile(rb"\[ONNX Layer: ((?:(?!\[ONNX Layer: ).)*?)\]")


@dataclass(frozen=True)
class PlanAccumulators:
    """The accumulators of the products of one plan.

    Attributes:
        attention_accumulators: The accumulators of all attention kernels with the same name, by tactic name. The plan
            does not show which kernel of that name runs.
        fp32_nodes: Nodes of the products with an FP32 accumulator. The accumulators of others are unknown.
    """

    attention_accumulators: Mapping[str, tuple[AccumulatorPair, ...]] = field(default_factory=dict)
    fp32_nodes: frozenset[str] = frozenset()


def read_plan_accumulators(plan_bytes: bytes) -> PlanAccumulators:
    """Reads the accumulators of products from a serialized plan; the result is empty if the plan contains none."""
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
        position = max(position, end - 1)  # the whole line was searched
    return PlanAccumulators({name: tuple(sorted(pairs, key=str))
                             for name, pairs in pairs_by_kernel.items()}, frozenset(nodes))


def find_common_accumulators(accumulator_pairs: tuple[AccumulatorPair, ...]) -> AccumulatorPair:
    """Returns the accumulators that all kernels of one name share; (None, None) if they differ or there is no kernel.
    """
    return accumulator_pairs[0] if len(set(accumulator_pairs)) == 1 else (None, None)


def _parse_accumulator_type(traits_name: bytes) -> Precision | None:
    """Returns the accumulator type in the name of a kernel's traits, such as ``Ampere_hmma_fp16``; None for another
    type."""
    return {b"fp16": Precision.FP16, b"fp32": Precision.FP32}.get(traits_name.rpartition(b"_")[2])
