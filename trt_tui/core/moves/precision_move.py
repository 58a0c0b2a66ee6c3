"""The move that gives a fusion group a precision."""

from dataclasses import dataclass

from trt_tui.core.moves.move import GROUP_SUBJECTS, DefaultPrecisions, Move
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision


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
