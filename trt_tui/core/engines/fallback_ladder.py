"""The rungs of a build: what is tried, one after the other, if no engine can be built as asked.

For releases that take precisions beside the graph (8.6, and 10 with ``--weak``) the rungs are: all precisions obeyed;
those of the layers that the builder's message names dropped or raised by one step; where it names none, all as asked
with the lowest effort (TensorRT 8.6 ends INT8 builds with "buildRefitEngine: Assertion engine failed" at level 3 that
it does at level 0); all precisions preferred; no precision given. In a strongly typed release precisions are in the
graph, so the named layers can be raised and the effort lowered, but nothing else can be done. What is built in other
precisions is not the engine that was asked for; `BuildAttempt` says how it differs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.inspector import ADDED_NODE_SUFFIX, FUSED_REGION_PATTERN, LayerFinder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.formatting import name_list_text

AS_REQUESTED, NAMED_GROUPS_CHANGED, LOWEST_EFFORT, PREFERRED_PRECISIONS, NO_PRECISIONS = ("asked", "named", "eased",
                                                                                          "prefer", "free")
"""The rungs, the highest first."""

ATTEMPT_TITLES = {
    AS_REQUESTED: "as requested", NAMED_GROUPS_CHANGED: "layers named by TensorRT changed",
    LOWEST_EFFORT: "optimization level 0",
    PREFERRED_PRECISIONS: "precisions preferred, not obeyed", NO_PRECISIONS: "no precision set"
}
"""Their names in reports."""

MAX_NAMED_ATTEMPTS = 6
"""How often layers that a message names are changed before the next rung; each try is a build."""

MIN_ATTEMPTS_BEFORE_SIMILAR = 3
"""After so many of these tries, all groups with the same operators as the named ones are changed too: an operator
without an implementation in one place mostly has none elsewhere, and a message names one at a time."""

LADDER_REASON = "builder"
"""The reason of the precision moves of a rung."""

_MAX_LISTED_GROUPS = 4


@dataclass(frozen=True)
class BuildAttempt:
    """One try at building a config.

    Attributes:
        name: One of this module's rungs.
        raised_groups: Groups that were given a higher precision than asked, with that precision.
        unconstrained: Groups whose precision was left to the builder.
        failure_reason: Why it gave no engine, "" if it gave one.
    """

    name: str = AS_REQUESTED
    raised_groups: Mapping[str, Precision] = field(default_factory=dict)
    unconstrained: tuple[str, ...] = ()
    failure_reason: str = ""

    @property
    def has_requested_precisions(self) -> bool:
        """Whether the precisions are those that were asked for."""
        return self.name in (AS_REQUESTED, LOWEST_EFFORT)

    @property
    def description(self) -> str:
        """How it differs from what was asked, in words."""
        if self.name != NAMED_GROUPS_CHANGED:
            return ATTEMPT_TITLES[self.name]
        by_precision: dict[Precision, list[str]] = {}
        for group, precision in self.raised_groups.items():
            by_precision.setdefault(precision, []).append(group)
        parts = [
            f"{name_list_text(groups, _MAX_LISTED_GROUPS)} raised to {precision.label}"
            for precision, groups in by_precision.items()
        ]
        return "; ".join([
            *parts,
            *([f"{name_list_text(self.unconstrained, _MAX_LISTED_GROUPS)} left to the builder"]
              if self.unconstrained else [])
        ])

    def derive_attempt_config(self, network: Network, requested_config: PrecisionConfig) -> PrecisionConfig:
        """The config that is lowered for this try."""
        for name, precision in self.raised_groups.items():
            requested_config = requested_config.with_group_precision([network.get_group(name)], precision,
                                                                     LADDER_REASON)
        return requested_config


def join_lines(message: str) -> str:
    """A library's message of several lines as one."""
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())


def attempt_lines(attempts: Sequence[BuildAttempt], unrequested_precisions: Mapping[str, Precision]) -> list[str]:
    """What was tried, a line each, and what came out.

    Args:
        unrequested_precisions: Groups that run in a precision other than asked, with that precision.
    """
    lines = [
        f"{attempt.description}: {f'failed: {attempt.failure_reason}' if attempt.failure_reason else 'built'}"
        for attempt in attempts
    ]
    if attempts and not attempts[-1].failure_reason and not attempts[-1].has_requested_precisions:
        lines.append("built in another precision than requested: "
                     f"{unrequested_precisions_text(unrequested_precisions)}")
    return lines


def unrequested_precisions_text(unrequested_precisions: Mapping[str, Precision]) -> str:
    """The groups that an engine runs in a precision other than asked, by that precision."""
    by_precision: dict[Precision, list[str]] = {}
    for group, precision in unrequested_precisions.items():
        by_precision.setdefault(precision, []).append(group)
    return "; ".join(f"{name_list_text(groups, _MAX_LISTED_GROUPS)} in {precision.label}"
                     for precision, groups in by_precision.items()) or ("nothing that TensorRT reports")


class FallbackLadder:
    """Goes down the rungs of one config.

    Args:
        can_drop_constraints: Whether precisions are given beside the graph, and can therefore be left out.
        has_constraints: Whether any precision is given at first, so that the lower rungs differ from it.
        can_reduce_effort: Whether the builder's effort can be lowered.
    """

    def __init__(self, network: Network, config: PrecisionConfig, can_drop_constraints: bool, has_constraints: bool,
                 can_reduce_effort: bool) -> None:
        self.network, self.requested_config, self.can_drop_constraints, self.has_constraints, self.can_reduce_effort = (
            network, config, can_drop_constraints, has_constraints, can_reduce_effort)
        self._named_attempts = 0

    def choose_next_attempt(self, failed_attempt: BuildAttempt, failure_message: str) -> BuildAttempt | None:
        """What to try after a rung whose build ended with a message; None if nothing is left."""
        if failed_attempt.name in (AS_REQUESTED, NAMED_GROUPS_CHANGED):
            changed = self._change_groups_in_message(
                failed_attempt, failure_message) if self._named_attempts < MAX_NAMED_ATTEMPTS else None
            if changed is not None:
                self._named_attempts += 1
                return changed
            if self.can_reduce_effort and not self._named_attempts:
                return BuildAttempt(LOWEST_EFFORT)
        if failed_attempt.name in (AS_REQUESTED, NAMED_GROUPS_CHANGED, LOWEST_EFFORT):
            return BuildAttempt(PREFERRED_PRECISIONS) if self.has_constraints else None
        return BuildAttempt(NO_PRECISIONS) if failed_attempt.name == PREFERRED_PRECISIONS else None

    def _change_groups_in_message(self, attempt: BuildAttempt, failure_message: str) -> BuildAttempt | None:
        """The rung with the layers that a message names changed; None if it names none that can be changed.

        In a fused region, precisions that were given are dropped first. Only if that is not enough are layers
        that read codes, which Q/DQ in the graph make, raised. A layer that is named on its own is raised if it reads
        codes.
        """
        config = attempt.derive_attempt_config(self.network, self.requested_config)
        named_groups, region_groups = find_groups_in_message(failure_message, self.network)
        if self._named_attempts >= MIN_ATTEMPTS_BEFORE_SIMILAR:
            named_groups = self._find_similar_groups(named_groups, config)
        if not self.can_drop_constraints:
            return self._raise_group_precisions(attempt, config, [*named_groups, *region_groups])
        constrained_groups = [
            group.name
            for group in (*named_groups, *region_groups)
            if config.precision_of(group) not in QUANTIZED_TYPES and group.name not in attempt.unconstrained
        ]
        quantized_groups = [group for group in named_groups if config.precision_of(group) in QUANTIZED_TYPES]
        if not constrained_groups and not quantized_groups:
            quantized_groups = [group for group in region_groups if config.precision_of(group) in QUANTIZED_TYPES]
            constrained_groups = [group.name for group in quantized_groups]
        changed = replace(attempt, name=NAMED_GROUPS_CHANGED,
                          unconstrained=(*attempt.unconstrained, *constrained_groups)) if constrained_groups else None
        return self._raise_group_precisions(changed or attempt, config, quantized_groups) or changed

    def _find_similar_groups(self, groups: Sequence[FusionGroup], config: PrecisionConfig) -> list[FusionGroup]:
        """The groups, and those of the same operators in the same precision."""
        def operators_and_precision(group: FusionGroup) -> tuple[str, ...]:
            return config.precision_of(group), *(self.network.get_layer(name).op_type for name in group.layers)

        signatures = set(map(operators_and_precision, groups))
        return [group for group in self.network.groups if operators_and_precision(group) in signatures]

    def _raise_group_precisions(self, attempt: BuildAttempt, config: PrecisionConfig,
                                groups: Sequence[FusionGroup]) -> BuildAttempt | None:
        higher = {group.name: above for group in groups if (above := next_higher_precision(group, config)) is not None}
        return replace(attempt, name=NAMED_GROUPS_CHANGED, raised_groups={**attempt.raised_groups, **higher
                                                                          }) if higher else None


def next_higher_precision(group: FusionGroup, config: PrecisionConfig) -> Precision | None:
    """What reads codes to what surrounds it, any other precision to FP32; None if there is no higher one."""
    precision = config.precision_of(group)
    if (precision in QUANTIZED_TYPES and config.other in group.allowed_precisions
            and config.other not in QUANTIZED_TYPES):
        return config.other
    return Precision.FP32 if precision is not Precision.FP32 and Precision.FP32 in group.allowed_precisions else None


def find_groups_in_message(message: str, network: Network) -> tuple[list[FusionGroup], list[FusionGroup]]:
    """The groups that a builder's message names: those named on their own, and those of the fused regions it names.

    If no layer is named, a tensor in the name of a Q, DQ or Cast that a lowering added counts.
    """
    layer_finder = LayerFinder(network)
    text = "\n".join(_failed_object_text(FUSED_REGION_PATTERN.sub("", line)) for line in message.splitlines())
    named_layers = _find_layers_in_message(ADDED_NODE_PATTERN.sub("", text), network) or [
        layer_finder.layer_names[index]
        for token in ADDED_NODE_PATTERN.findall(text)
        if (index := layer_finder.find_layer_position(token)) is not None
    ]
    region_layers: list[str] = []
    for match in FUSED_REGION_PATTERN.finditer(message):
        own_groups, _, last = match[1].partition("...")
        ends = [
            index for end in (own_groups, last or own_groups)
            if (index := layer_finder.find_layer_position(end.partition(" + ")[0])) is not None
        ]
        region_layers += layer_finder.layer_names[min(ends):max(ends) + 1] if ends else []
    own_groups, region_groups = ({
        group.name: group
        for layer in layers
        if (group := network.find_group(layer)) is not None
    }
                                 for layers in (named_layers, region_layers))
    return list(own_groups.values()), [group for name, group in region_groups.items() if name not in own_groups]


ADDED_NODE_PATTERN = re.compile(r"(?<![^\s,()\[\]{}])[^\s,()\[\]{}]+" + ADDED_NODE_SUFFIX.pattern.removesuffix("$")
                                + r"(?=[\s.,)\]}]|$)")
"""A node that a lowering added, as it occurs in a text."""


def _failed_object_text(line: str) -> str:
    """The part of a message that names what failed, if it is marked; words before it may also be names of layers."""
    return line.rpartition(" for node ")[2] if " for node " in line else line.rpartition(" for ")[2]


def _find_layers_in_message(message_text: str, network: Network) -> list[str]:
    """The layers that a text names, in that order; of several at one place the one with the longest name."""
    names_by_position: dict[int, str] = {}
    for layer in network.layers:
        if layer.name not in message_text:
            continue
        for match in re.finditer(rf"(?<![\w/]){re.escape(layer.name)}(?![^\W_]|/)", message_text):
            if len(layer.name) > len(names_by_position.get(match.start(), "")):
                names_by_position[match.start()] = layer.name
    return list(dict.fromkeys(names_by_position[position] for position in sorted(names_by_position)))


class NoEngineError(TrtTuiError):
    """A config could not be built.

    Attributes:
        attempts: What was tried, if the build went down the rungs.
    """

    attempts: tuple[BuildAttempt, ...] = ()


class BuildError(NoEngineError):
    """A build failed.

    Attributes:
        details: The last of the builder's verbose messages.
        is_refused: The builder found no implementation in these precisions; False for other reasons, such as memory.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", details: tuple[str, ...] = (),
                 is_refused: bool = True) -> None:
        super().__init__(title, cause, next_step)
        self.details = details
        self.is_refused = is_refused


class NetworkParseError(NoEngineError, InputError):
    """The builder's parser refused the network.

    Attributes:
        node: The node that it stopped at, "" if it names none.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", node: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.node = node
