"""The move that keeps a tensor as an output of the network, so that TensorRT cannot fuse across it: a fusion barrier.

People work around a kernel that computes something else that way. A debug mark would not do: it breaks no fusion, in
TensorRT-RTX 1.7 at least, so the tensor is an output that nobody has to read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_tui.core.moves.move import Decided, Subject, in_order
from trt_tui.core.network.layers import Group, Outline


class _Results(Subject):
    """Tensors that layers yield; a group's are those that leave it."""

    noun, key, whole, why_one = "tensor", "tensors", "tensor", "it is an output or it is not"

    def has(self, network: Outline, name: str) -> bool:
        return network.has_tensor(name)

    def known(self, network: Outline) -> list[str]:
        return [output for layer in network.layers for output in layer.outputs if output]

    def target(self, network: Outline, name: str) -> str | None:
        return name

    def names(self, network: Outline, target: str) -> tuple[str, ...]:
        return (target,)

    def of(self, group: Group) -> Sequence[str]:
        return tuple(dict.fromkeys((group.tail, *group.outputs)))

    def ordered(self, network: Outline, targets: Iterable[str]) -> list[str]:
        return in_order(self.known(network), targets)


@dataclass(frozen=True)
class Barrier(Decided):
    """A tensor that is an output of what is lowered, and who said so."""

    kind, subject, column = "barrier", _Results(), "barrier"
    decides, label, infinitive = True, "hidden output", "be a hidden output"
    note = "fusion barrier: its result is a hidden output"

    reason: str = "user"

    def refused(self, network: Outline, target: str) -> str:
        """Why the tensor cannot be an output; see `Move.refused`."""
        if any(info.name == target for info in network.outputs):
            return "it is an output of the network already"
        maker = next((layer for layer in network.layers if target in layer.outputs), None)
        if maker is None:
            return "no layer computes it"
        return "" if network.group_of(maker.name) is not None else "it is no float that a layer computes"

    @classmethod
    def about(cls, title: str) -> str:
        """``barrier at <title>``."""
        return f"barrier at {title}"
