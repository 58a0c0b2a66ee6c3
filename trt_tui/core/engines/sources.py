"""What a plan of TensorRT-RTX says of the sums of its products, which no listing has (as plans of 1.7.1 for SM89 do).

It holds the source of its attention kernels: `fmha::Ampere_hmma_fp32_traits` stands for QK where its Softmax is FP32,
and for QK or PV where the product is. Kernels whose sums differ may have one name. Of a MatMul it says
`accumulation_type=2` where it is summed in FP32, and 0 where that is left to the kernel; of a Conv nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trt_tui.core.precision import Precision

Pair = tuple["Precision | None", "Precision | None"]
"""What QK and PV of an attention are summed in, or any other product twice; None where it is not known."""

_BEGINS = b"Kernel_traits"
_TRAITS = re.compile(rb"\w{0,200}<\s*fmha::(\w+)_traits,\s*fmha::(\w+)_traits,")
_NAME = re.compile(rb"__global__ void (\w+)\(")
_REACH = 1 << 16
"""Bytes of source behind the traits within which the kernel's name stands."""

_PRODUCT = b"fully_connected={"
_IN_FP32 = re.compile(rb" accumulation_type=2 ")
_LAYER = re.compile(rb"\[ONNX Layer: ((?:(?!\[ONNX Layer: ).)*?)\]")


@dataclass(frozen=True)
class Sums:
    """What the products of a plan are summed in.

    Attributes:
        attentions: By tactic, of each attention kernel of that name; which is which is not told.
        in_fp32: Nodes of the products that are summed in FP32; of others it is not told.
    """

    attentions: Mapping[str, tuple[Pair, ...]] = field(default_factory=dict)
    in_fp32: frozenset[str] = frozenset()


def sums_of(plan: bytes) -> Sums:
    """Reads what a plan says; nothing where it says nothing of the kind."""
    found: dict[str, list[Pair]] = {}
    at = -1
    while (at := plan.find(_BEGINS, at + 1)) >= 0:
        traits = _TRAITS.match(plan, at + len(_BEGINS))
        name = _NAME.search(plan, traits.end(), traits.end() + _REACH) if traits is not None else None
        if traits is not None and name is not None:
            found.setdefault(name[1].decode("ascii"), []).append((_sum(traits[1]), _sum(traits[2])))
    nodes: set[str] = set()
    while (at := plan.find(_PRODUCT, at + 1)) >= 0:
        end = plan.find(b"\n", at, at + _REACH)
        if _IN_FP32.search(plan, at, end if end >= 0 else at):
            nodes.update(name.decode("utf-8", "surrogateescape") for name in _LAYER.findall(plan, at, end))
        at = max(at, end - 1)  # the rest of the line was read
    return Sums({name: tuple(sorted(pairs, key=str)) for name, pairs in found.items()}, frozenset(nodes))


def one_of(pairs: tuple[Pair, ...]) -> Pair:
    """What all kernels of a name sum in; not known where they differ."""
    return pairs[0] if len(set(pairs)) == 1 else (None, None)


def _sum(traits: bytes) -> Precision | None:
    """What products of the name of their traits are summed in: ``Ampere_hmma_fp16``."""
    return {b"fp16": Precision.FP16, b"fp32": Precision.FP32}.get(traits.rpartition(b"_")[2])
