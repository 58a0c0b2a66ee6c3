"""The groups of one attention: the product that makes its scores, the Softmax over them, the product with its values.

Source: TensorRT-RTX 1.7, which makes one engine layer of them (`_gemm_mha_v2`) where all are 16 bit; each can be
given a precision of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trt_tui.core.network.fusion.growing import Growing, Members
from trt_tui.core.network.layers import Kind, Layer
from trt_tui.core.network.operators import POINTWISE

_Step: TypeAlias = Callable[[Growing, Members], "Members | None"]

_PRODUCTS = frozenset(("MatMul", "Einsum"))
_FARTHEST = 3  # groups between a product and the Softmax: masks that are no group's own

SCORES, SOFTMAX, VALUES, BETWEEN = "QK", "Softmax", "PV", "mask"
"""What the groups of an attention are called in it."""


@dataclass(frozen=True)
class Core:
    """The groups of one attention; false where a rule declines.

    Attributes:
        roles: What each group is in it, by group.
        reason: Why the rule declines, "" where it does not.
    """

    roles: Mapping[Members, str] = field(default_factory=dict)
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.roles)


def match(growing: Growing, members: Members) -> Core:
    """The attention around a group that is a Softmax, all groups being complete."""
    if members.operator != "Softmax":
        return Core(reason=f"{members.operator} is no Softmax")
    before = _until_product(growing, members, _group_before)
    if before is None:
        return Core(reason="no product of two activations makes its scores")
    behind = _until_product(growing, members, _group_behind)
    if behind is None:
        return Core(reason="no product of two activations is all that reads it")
    *masks, scores = before
    *others, values = behind
    return Core({scores: SCORES, **dict.fromkeys(masks[::-1], BETWEEN), members: SOFTMAX,
                 **dict.fromkeys(others, BETWEEN), values: VALUES})


def _until_product(growing: Growing, members: Members, step: _Step) -> list[Members] | None:
    """The groups from one to the next product, that one last; None where another kind of group comes first."""
    passed: list[Members] = []
    while len(passed) <= _FARTHEST:
        following = step(growing, passed[-1] if passed else members)
        if following is None:
            return None
        passed.append(following)
        leader = following.leader
        if growing.multiplies_activations(leader) or leader.op_type == "Einsum" and len(leader.inputs) == 2:
            return passed
        if leader.op_type not in POINTWISE:
            return None
    return None


def _group_before(growing: Growing, members: Members) -> Members | None:
    """The group that alone computes what a group reads of what leads to no shape."""
    made = {name for layer in members.layers for name in layer.outputs}
    before = {growing.owner[producer] for layer in members.layers for name in _floats(growing, layer)
              if name not in made and (producer := growing.graph.producer.get(name, "")) in growing.owner}
    joined = [one for one in before if one.leader.op_type in _PRODUCTS] if len(before) > 1 else list(before)
    return joined[0] if len(joined) == 1 else None


def _group_behind(growing: Growing, members: Members) -> Members | None:
    """The group that alone reads what a group computes."""
    names = {layer.name for layer in members.layers}
    users = {user for layer in members.layers for name in layer.outputs
             for user in growing.graph.consumers.get(name, ()) if user not in names}
    groups = {growing.owner.get(user) for user in users if growing.graph.by_name[user].kind is not Kind.SHAPE}
    outside = any(growing.is_output(name) for layer in members.layers for name in layer.outputs)
    return groups.pop() if len(groups) == 1 and not outside else None


def _floats(growing: Growing, layer: Layer) -> list[str]:
    return [name for name in growing.dynamic_inputs(layer) if growing.graph.is_float(name)]
