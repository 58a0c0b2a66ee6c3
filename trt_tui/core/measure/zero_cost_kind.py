"""The base class of the kinds of zero-cost change, and the context in which a kind measures its proposals."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from trt_tui.core.calibration.tensor_collection import CalibrationContext, RunProgress
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.zero_cost_checks import replace_file_precision
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.runner import Backend

T = TypeVar("T")

LEAVES_FILE_SUFFIX = ", no longer in file precision"
"""The suffix in the label of a proposal that replaces the file precision of groups by another precision."""


class ZeroCostStage(IntEnum):
    """The stages of zero-cost changes, in the order of a search.

    The changes of a stage are measured in the config with the accepted changes of the earlier stages. A change removes
    the moves of later stages on the groups that it changes, since they were measured without it.
    """

    FORM = auto()
    """Changes after which the network computes the same values in FP32."""
    ROUNDING = auto()
    """Other quantized values of the weights, which belong to the weights after the changes of form."""
    BIAS = auto()
    """Corrections of the mean error that all other changes leave."""


@dataclass(frozen=True)
class ConfigProposal:
    """A proposed config with zero-cost moves of one kind added.

    Attributes:
        label: The title of these moves in lists.
        short_label: The title in at most 15 characters; "" if the label is that short.
        family: The title of the change of which the proposal is a variant, such as one strength of SmoothQuant; "" if
            there are no variants. Lists show the best variant only.
    """

    label: str
    config: PrecisionConfig
    short_label: str = ""
    family: str = ""


@dataclass
class TrialBudget:
    """The number of configs that may be simulated to choose among variants of changes.

    It counts configs, not time or executions: the same configs count if their values are stored already.

    Attributes:
        limit: The maximum number of configs.
        used: Number of configs so far.
        is_exceeded: True if a config was refused.
    """

    limit: float = math.inf
    used: int = 0
    is_exceeded: bool = False

    def reserve_configs(self, count: int = 1) -> bool:
        """Returns True and counts some configs if the budget allows all of them."""
        if self.used + count > self.limit:
            self.is_exceeded = True
            return False
        self.used += count
        return True


class StoredMeasurement(Protocol):
    """A function that measures a value of a config once and then reads the stored value."""

    def __call__(self, title: str, config: PrecisionConfig, result_type: type[T], measure: Callable[[], T], /, *,
                 subjects: Sequence[str] = ()) -> T:
        """Returns the value of a config that is stored under a title; if there is none, measures and stores it.

        Args:
            subjects: The groups whose moves are measured together on the calibration samples; () for a value that does
                not depend on the calibration samples.
        """


@dataclass(frozen=True)
class JudgedMeasurement:
    """The measurement of configs on the judged samples.

    Attributes:
        samples: The judged samples.
        feeds: The feeds that values are measured on.
        tensors: The judged tensors of float type.
        measure_sample_errors: A function that measures a config on some feeds. It returns the noise and the signal
            energy of each sample at each judged output, float64 ``(samples, outputs)``.
    """

    samples: Samples
    feeds: tuple[int, ...]
    tensors: tuple[str, ...]
    measure_sample_errors: Callable[[PrecisionConfig, Sequence[int], RunProgress], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ProposalContext:
    """The config, the groups and the calibration samples for which a kind of zero-cost change makes its proposals.

    Attributes:
        config: The config to which moves are added.
        groups: The groups that may be changed: one row, or all groups in a search.
        samples: The calibration samples.
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        range_method: The method of the ranges; "" if there are none.
        reason: The origin of the moves.
        may_replace_file_precision: True to change groups in file precision too. They get the nearest other precision.
        in_separate_pass: True to measure values for these groups in one separate pass, even if they are known.
        measured_values: The values measured so far, by the keys of `get_measured_values`.
        judged_measurement: The measurement by which kinds choose between variants.
        budget: The budget of the configs that are simulated for this choice.
        find_or_measure: A function that measures a value of a config once for all searches.
        make_executor: A function that returns the executor of the calibration samples.
        make_progress: A function that returns the progress callback of a pass over the samples, by the title of the
            pass.
        add_moves: A function that returns a config with zero-cost moves of one kind added, by their subjects, without
            what they invalidate: `trt_tui.core.measure.zero_cost_kinds.add_zero_cost_moves` for the network.
    """

    network: Network
    config: PrecisionConfig
    groups: Sequence[FusionGroup]
    samples: Samples
    backend: Backend
    ranges: Mapping[str, float]
    range_method: str
    reason: str
    may_replace_file_precision: bool
    in_separate_pass: bool
    measured_values: dict[object, Any]
    judged_measurement: JudgedMeasurement
    budget: TrialBudget
    find_or_measure: StoredMeasurement
    make_executor: Callable[[], Executor[CalibrationContext]]
    make_progress: Callable[[str], RunProgress]
    add_moves: Callable[[PrecisionConfig, Mapping[str, Move]], PrecisionConfig]

    def prepare_config(self, changed_groups: Iterable[FusionGroup]) -> tuple[PrecisionConfig, str]:
        """Returns the config with the file precision of some groups replaced, and the suffix for the label of the
        proposal."""
        ready = self.config
        if self.may_replace_file_precision:
            ready = replace_file_precision(self.config, changed_groups, self.reason)
        return ready, LEAVES_FILE_SUFFIX if ready != self.config else ""

    def get_measured_values(self, title: str, dependencies: Sequence[object], subjects: Iterable[str]
                            ) -> dict[str, Any]:
        """Returns the values that were measured so far, by group or tensor. The caller adds missing values.

        Runtimes fuse layers whose tensors are not read, so values differ in the last bits between passes. With
        ``in_separate_pass``, the values therefore belong to a pass with exactly these subjects.

        Args:
            title: The name of the measured quantity.
            dependencies: Everything besides the calibration samples that the values depend on.
            subjects: The groups or tensors of the pass.
        """
        key = (title, *dependencies, *([True, *subjects] if self.in_separate_pass else [False]))
        values: dict[str, Any] = self.measured_values.setdefault(key, {})
        return values


class ZeroCostKind(ABC):
    """A kind of change that adds no run time: its texts, its conditions and the measurement of its proposals.

    `ZERO_COST_KINDS` lists all kinds. The app, the remedies, the searches and the exporters read that table.

    Attributes:
        title: The name of the kind in lists and messages.
        move_class: The kind of move that the change adds; None if it only changes precisions.
        stage: The stage in which the change is measured and tried.
        is_for_rows: True if the change is offered for single groups.
        is_for_searches: True if a search tries the change on all groups.
        is_exact: True if the network computes the same values in FP32 with the change.
        is_dropped_when_raised: True if a search removes the change from a group that it raises.
        omission_text: The text of the exports that keep only exact changes, about a number of moves; "" for exact
            changes.
    """

    title: ClassVar[str]
    move_class: ClassVar[type[Move] | None] = None
    stage: ClassVar[ZeroCostStage] = ZeroCostStage.FORM
    is_for_rows: ClassVar[bool] = True
    is_for_searches: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True
    is_dropped_when_raised: ClassVar[bool] = False
    omission_text: ClassVar[str] = ""

    def is_listed_for(self, network: NetworkOutline) -> bool:
        """Returns True if lists show the kind for a network, even where it is impossible."""
        return True

    @abstractmethod
    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        """Returns the reason why a fusion group cannot have the change; "" if it can.

        Args:
            config: The config of the user. The change may replace the file precision of the group.
        """

    def find_subject(self, network: NetworkOutline, group: FusionGroup) -> str | None:
        """Returns the group that has the move if the change is made for a group; None if there is no such group."""
        return group.name

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the tensors and the groups whose values a move changes, so that earlier measurements become invalid.

        `add_zero_cost_moves` removes the ranges of these tensors, and the moves of later stages on these groups.
        """
        return (), ()

    @abstractmethod
    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        """Yields the changes that the groups of a context can have and do not have yet, one config for each variant.

        Raises:
            InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
        """
