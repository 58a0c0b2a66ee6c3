"""What a plan of TensorRT-RTX says of its attention kernels: it holds their source, with the type of the sums.

A listing names types of what goes into a kernel and comes out of it. A fused attention of FP16 tensors sums QK and PV
in FP16 or in FP32 all the same: `fmha::Ampere_hmma_fp32_traits` for QK where its Softmax is FP32, for either where the
product is (seen in plans of 1.7.1 for SM89). Kernels whose sums differ may have one name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trt_tui.core.precision import Precision

Pair = tuple["Precision | None", "Precision | None"]
"""What QK and PV of an attention are summed in; None for integers and what is not known."""

Sums = Mapping[str, tuple[Pair, ...]]
"""By tactic, of each kernel of that name in a plan; which is which is not told."""

MHA = "_mha"
"""What the names of attention kernels have in a listing."""

_BEGINS = b"Kernel_traits"
_TRAITS = re.compile(rb"\w*<\s*fmha::(\w+)_traits,\s*fmha::(\w+)_traits,")
_NAME = re.compile(rb"__global__ void (\w+)\(")
_REACH = 1 << 16
"""Bytes of source behind the traits within which the kernel's name stands."""


def attention_sums(plan: bytes) -> dict[str, tuple[Pair, ...]]:
    """Reads what the attention kernels of a plan sum in; nothing where it holds no such source."""
    found: dict[str, list[Pair]] = {}
    at = -1
    while (at := plan.find(_BEGINS, at + 1)) >= 0:
        traits = _TRAITS.match(plan, at + len(_BEGINS))
        name = _NAME.search(plan, traits.end(), traits.end() + _REACH) if traits is not None else None
        if traits is not None and name is not None:
            found.setdefault(name[1].decode("ascii"), []).append((_sum(traits[1]), _sum(traits[2])))
    return {name: tuple(sorted(sums, key=str)) for name, sums in found.items()}


def one_of(pairs: tuple[Pair, ...]) -> Pair:
    """What all kernels of a name sum in; not known where they differ."""
    return pairs[0] if len(set(pairs)) == 1 else (None, None)


def _sum(traits: bytes) -> Precision | None:
    """What products of the name of their traits are summed in: ``Ampere_hmma_fp16``."""
    return {b"fp16": Precision.FP16, b"fp32": Precision.FP32}.get(traits.rpartition(b"_")[2])
