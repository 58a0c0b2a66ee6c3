"""The move that gives a fusion group a precision."""

from dataclasses import dataclass

from trt_tui.core.moves.move import GROUPS, Decided, Defaults
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Choice(Decided):
    """The precision a group was given, and who gave it (``user`` or ``search:<method>``)."""

    kind, subject, column = "precision", GROUPS, "precision"

    precision: Precision
    reason: str = "user"

    @property
    def decides(self) -> str:
        """The precision, as files name it."""
        return self.precision.value

    def refused(self, network: Outline, target: str) -> str:
        """Why the group cannot run in that precision; see `Move.refused`."""
        if self.precision is Precision.TF32:
            return 'TF32 is a setting of the whole engine in every release: "tf32": true, or --tf32'
        if self.precision is Precision.FILE and network.group(target).given is None:
            return "the network's file is FP32 and has no precisions of its own"
        return network.group(target).refusals.get(self.precision, "")

    @property
    def runs_in(self) -> Precision:
        """The precision."""
        return self.precision

    @property
    def label(self) -> str:
        """The precision: ``FP16``."""
        return self.precision.label

    @property
    def infinitive(self) -> str:
        """``run in FP16``."""
        return f"run in {self.label}"

    @classmethod
    def label_without(cls, network: Outline, target: str, defaults: Defaults) -> str:
        """The precision that the group has by default."""
        group = network.group(target)
        return group.label(defaults.default_for(group))

    @classmethod
    def about(cls, title: str) -> str:
        """The group's title alone: a precision needs no other word."""
        return title
