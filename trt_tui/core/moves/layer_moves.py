"""The moves that change a fusion group or a tensor without constants of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trt_tui.core.calibration.user_ranges import is_data_dependent
from trt_tui.core.moves.move import (
    GROUP_SUBJECTS,
    TENSOR_SUBJECTS,
    DefaultPrecisions,
    Move,
    TensorSubjectKind,
    sort_names_in_order,
)
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import MAX_AMAX


@dataclass(frozen=True)
class PrecisionMove(Move):
    """The precision of a fusion group, and the origin of the decision (``user`` or ``search:<method>``)."""

    kind, subject_kind = "precision", GROUP_SUBJECTS

    precision: Precision
    reason: str = "user"

    @property
    def effect_key(self) -> str:
        return self.precision.value

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if self.precision is Precision.TF32:
            return 'TF32 is a setting of the whole engine in every release: "tf32": true, or --tf32'
        if self.precision is Precision.FILE and network.get_group(subject).file_precision is None:
            return "the network file is FP32 and has no file precision"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision

    @classmethod
    def default_label(cls, network: NetworkOutline, subject: str, default_precisions: DefaultPrecisions) -> str:
        """Returns the default precision of the fusion group as text.

        Implements `Move.default_label`.
        """
        group = network.get_group(subject)
        return group.precision_label(default_precisions.default_precision_of(group))


KEEP_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""The precisions that a keep rule can fix."""


@dataclass(frozen=True)
class KeepMove(Move):
    """The precision that a keep rule fixes for a fusion group.

    Attributes:
        rule: The keep rule as the user wrote it.
        precision: The fixed precision.
    """

    kind, subject_kind = "keep", GROUP_SUBJECTS
    keeps_precision = True

    rule: str
    precision: Precision = Precision.FP32

    @property
    def effect_key(self) -> str:
        """The fixed precision as files name it. The name of the keep rule has no effect."""
        return str(self.precision.value)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if self.precision not in KEEP_PRECISIONS:
            return f"a rule keeps layers in {', '.join(precision.label for precision in KEEP_PRECISIONS)}"
        return network.get_group(subject).refusal_reasons.get(self.precision, "")

    @property
    def group_precision(self) -> Precision:
        return self.precision


@dataclass(frozen=True)
class RangeMove(Move):
    """A range that replaces the calibrated range of a tensor.

    Attributes:
        amax: The end of the range, in the tensor's own units.
        method: The origin of the range: a range method, or "user".
    """

    kind, subject_kind = "range", TENSOR_SUBJECTS

    amax: float
    method: str = "user"

    @property
    def effect_key(self) -> float:
        return self.amax

    @property
    def has_measured_values(self) -> bool:
        return is_data_dependent(self.method)

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        return "" if 0 <= self.amax <= MAX_AMAX else "a range is a number from 0 to the largest FP32 value"

    def adjust_ranges(self, amax_by_tensor: dict[str, float], tensors: Sequence[str]) -> None:
        amax_by_tensor.update(dict.fromkeys(tensors, self.amax))


class _LayerOutputSubjectKind(TensorSubjectKind):
    """Layer outputs as the subjects of fusion barriers. The subjects of a fusion group are the tensors that leave the
    group."""

    shared_move_reason = "a barrier has no value"

    def list_subject_names(self, network: NetworkOutline) -> list[str]:
        return [output for layer in network.layers for output in layer.outputs if output]

    def list_subjects_of_group(self, group: FusionGroup) -> Sequence[str]:
        return tuple(dict.fromkeys((group.final_tensor, *group.outputs)))

    def sort_subjects(self, network: NetworkOutline, subjects: Iterable[str]) -> list[str]:
        return sort_names_in_order(self.list_subject_names(network), subjects)


@dataclass(frozen=True)
class BarrierMove(Move):
    """A fusion barrier: one tensor becomes an additional output of the lowered network.

    A fusion barrier is a workaround for a fused kernel that computes wrong values. A debug mark would not suffice,
    because it prevents no fusion (observed in TensorRT-RTX 1.7). The tensor is therefore an output that no application
    has to read.

    Attributes:
        reason: The origin of the move, such as "user".
    """

    kind, subject_kind, effect_key = "barrier", _LayerOutputSubjectKind(), True

    reason: str = "user"

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        if any(info.name == subject for info in network.outputs):
            return "it is already a network output"
        producer = next((layer for layer in network.layers if subject in layer.outputs), None)
        if producer is None:
            return "no layer computes it"
        return "" if network.find_group(producer.name) is not None else "it is not a float tensor that a layer computes"


@dataclass(frozen=True)
class RewriteMove(Move):
    """The ONNX operator that replaces the layers of a decomposed normalisation.

    TensorRT computes mean and variance of the operator in FP32, whatever the surrounding type. In the decomposed form
    every intermediate result is rounded, and the square of a value from 256 up overflows FP16.

    Attributes:
        reason: The origin of the move, such as "user".
    """

    kind, subject_kind = "rewrite", GROUP_SUBJECTS
    is_normalisation_rewrite = True

    operator: Literal["LayerNormalization", "RMSNormalization"]
    reason: str = "user"

    @property
    def effect_key(self) -> str:
        return self.operator

    def refusal_reason(self, network: NetworkOutline, subject: str) -> str:
        norm = network.zero_cost_support.norms.get(subject)
        if norm is None:
            return "it contains no decomposed LayerNorm or RMSNorm"
        if norm.no_rewrite_reason:
            return norm.no_rewrite_reason
        return "" if norm.operator == self.operator else f"the operator is {norm.operator}"
