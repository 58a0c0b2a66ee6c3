"""The move that keeps a tensor as an output of the network, so that TensorRT cannot fuse across it: a fusion barrier.

People work around a kernel that computes something else that way. A debug mark would not do: it breaks no fusion, in
TensorRT-RTX 1.7 at least, so the tensor is an output that nobody has to read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_tui.core.moves.move import Move, SubjectKind, sort_names_in_order
from trt_tui.core.network.layers import FusionGroup, NetworkOutline


class _LayerOutputSubjectKind(SubjectKind):
    """Tensors that layers yield; a group's are those that leave it."""

    noun, names_key, subject_noun, shared_move_reason = "tensor", "tensors", "tensor", "a barrier has no value"

    def has_subject_name(self, network: NetworkOutline, name: str) -> bool:
        return network.has_tensor(name)

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        return [output for layer in network.layers for output in layer.outputs if output]

    def find_move_subject(self, network: NetworkOutline, name: str) -> str | None:
        return name

    def list_names_of_subject(self, network: NetworkOutline, subject: str) -> tuple[str, ...]:
        return (subject,)

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return tuple(dict.fromkeys((group.final_tensor, *group.outputs)))

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order(self.list_subject_names(network), subjects)


@dataclass(frozen=True)
class BarrierMove(Move):
    """A tensor that is an output of what is lowered, and who said so."""

    kind, subject_kind, effect_key = "barrier", _LayerOutputSubjectKind(), True

    reason: str = "user"

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        """Why the tensor cannot be an output; see `Move.refusal_reason`."""
        if any(info.name == subject for info in network.outputs):
            return "it is already a network output"
        producer = next((layer for layer in network.layers if subject in layer.outputs), None)
        if producer is None:
            return "no layer computes it"
        return "" if network.find_group(producer.name) is not None else "it is not a float tensor that a layer computes"
