"""The fallback ladder, which is the sequence of build attempts after TensorRT refuses a config; and warnings of
TensorRT.

For releases with layer constraints (8.6, and 10 with ``--weak``) the attempts are:

1. All precisions are obeyed.
2. The layers that the builder's message names lose their precision or are raised by one step.
3. If the message names no layer, the same config is built at optimization level 0. TensorRT 8.6 ends INT8 builds at
  level 3 with "buildRefitEngine: Assertion engine failed" that succeed at level 0.
4. All precisions become preferences.
5. No precision is set.

In a strongly typed release the precisions are in the graph. Only attempts 1 to 3 are possible there, and the precision
of named layers can only be raised. `BuildAttempt` states the differences from the requested precisions.

The module also has short forms of warnings by TensorRT's parser and builder.

The warnings are recognised by their texts in TensorRT 8.5 to 10 (NVIDIA/TensorRT issues 2462, 3692, 3748;
Linaom1214/TensorRT-For-YOLO-Series issue 56) and in TensorRT-RTX 1.7. All others stay in the log.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.inspector import ADDED_NODE_SUFFIX, FUSED_REGION_PATTERN, LayerFinder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.formatting import counted_noun_text, name_list_text

AS_REQUESTED, NAMED_GROUPS_CHANGED, LOWEST_EFFORT, PREFERRED_PRECISIONS, NO_PRECISIONS = (
    "asked",
    "named",
    "eased",
    "prefer",
    "free",
)
"""Names of the build attempts, in the order of the fallback ladder."""

ATTEMPT_TITLES = {
    AS_REQUESTED: "as requested",
    NAMED_GROUPS_CHANGED: "layers named by TensorRT changed",
    LOWEST_EFFORT: "optimization level 0",
    PREFERRED_PRECISIONS: "precisions preferred, not obeyed",
    NO_PRECISIONS: "no precision set",
}
"""Titles of the build attempts in reports."""

MAX_NAMED_ATTEMPTS = 6
"""Maximum number of attempts that change the layers named by a message. Each attempt is a build."""

MIN_ATTEMPTS_BEFORE_SIMILAR = 3
"""Number of these attempts after which all groups with the same operators as the named ones are changed too. An
operator that lacks an implementation in one layer mostly lacks it in others, and a message names one layer at a time.
"""

LADDER_REASON = "builder"
"""The reason stored in the precision moves of a build attempt."""

_MAX_LISTED_GROUPS = 4


@dataclass(frozen=True)
class BuildAttempt:
    """One attempt to build an engine for a config.

    Attributes:
        name: One of the attempt names in this module.
        raised_groups: Groups with a higher precision than requested, each with that precision.
        unconstrained: Groups whose precision the builder chooses.
        failure_reason: The reason why the attempt gave no engine; "" if it gave one.
    """

    name: str = AS_REQUESTED
    raised_groups: Mapping[str, Precision] = field(default_factory=dict)
    unconstrained: tuple[str, ...] = ()
    failure_reason: str = ""

    @property
    def has_requested_precisions(self) -> bool:
        return self.name in (AS_REQUESTED, LOWEST_EFFORT)

    @property
    def changes_text(self) -> str:
        """The changes of the attempt from the requested build, as text for reports."""
        if self.name != NAMED_GROUPS_CHANGED:
            return ATTEMPT_TITLES[self.name]
        free_text = (
            f"{name_list_text(self.unconstrained, _MAX_LISTED_GROUPS)} left to the builder"
            if self.unconstrained
            else ""
        )
        return "; ".join(filter(None, (_groups_by_precision_text(self.raised_groups, "raised to"), free_text)))

    def derive_attempt_config(self, network: Network, requested_config: PrecisionConfig) -> PrecisionConfig:
        """Returns the config of this attempt: the requested config with the raised groups."""
        for name, precision in self.raised_groups.items():
            requested_config = requested_config.with_group_precision(
                [network.get_group(name)], precision, LADDER_REASON
            )
        return requested_config


def join_lines(message: str) -> str:
    """Joins the lines of a message into one line."""
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())


def attempt_lines(attempts: Sequence[BuildAttempt], unrequested_precisions: Mapping[str, Precision]) -> list[str]:
    """Returns a line on each build attempt and its result, and a line on groups in unrequested precisions.

    Args:
        unrequested_precisions: The precisions of groups that run in another precision than requested, by group.
    """
    lines = [
        f"{attempt.changes_text}: {f'failed: {attempt.failure_reason}' if attempt.failure_reason else 'built'}"
        for attempt in attempts
    ]
    if attempts and not attempts[-1].failure_reason and not attempts[-1].has_requested_precisions:
        lines.append(
            f"built in another precision than requested: {unrequested_precisions_text(unrequested_precisions)}"
        )
    return lines


def unrequested_precisions_text(unrequested_precisions: Mapping[str, Precision]) -> str:
    """Returns a text with the groups that run in another precision than requested, sorted by precision."""
    return _groups_by_precision_text(unrequested_precisions, "in") or "nothing that TensorRT reports"


def _groups_by_precision_text(precisions: Mapping[str, Precision], preposition: str) -> str:
    by_precision = collect_by_key((precision, group) for group, precision in precisions.items())
    return "; ".join(
        f"{name_list_text(groups, _MAX_LISTED_GROUPS)} {preposition} {precision.label}"
        for precision, groups in by_precision.items()
    )


class FallbackLadder:
    """The fallback ladder of one config. It chooses the next build attempt after a failed one.

    Args:
        can_drop_constraints: True if precisions are layer constraints, which can be dropped.
        has_constraints: True if the first attempt has any layer constraints.
        can_reduce_effort: True if the builder's optimization level can be reduced.
    """

    def __init__(
        self,
        network: Network,
        config: PrecisionConfig,
        can_drop_constraints: bool,
        has_constraints: bool,
        can_reduce_effort: bool,
    ) -> None:
        self.network, self.requested_config, self.can_drop_constraints, self.has_constraints, self.can_reduce_effort = (
            network,
            config,
            can_drop_constraints,
            has_constraints,
            can_reduce_effort,
        )
        self._named_attempts = 0

    def choose_next_attempt(self, failed_attempt: BuildAttempt, failure_message: str) -> BuildAttempt | None:
        """Returns the next build attempt after a failed one; None if no attempt is left."""
        if failed_attempt.name in (AS_REQUESTED, NAMED_GROUPS_CHANGED):
            changed = (
                self._change_groups_in_message(failed_attempt, failure_message)
                if self._named_attempts < MAX_NAMED_ATTEMPTS
                else None
            )
            if changed is not None:
                self._named_attempts += 1
                return changed
            if self.can_reduce_effort and not self._named_attempts:
                return BuildAttempt(LOWEST_EFFORT)
        if failed_attempt.name in (AS_REQUESTED, NAMED_GROUPS_CHANGED, LOWEST_EFFORT):
            return BuildAttempt(PREFERRED_PRECISIONS) if self.has_constraints else None
        return BuildAttempt(NO_PRECISIONS) if failed_attempt.name == PREFERRED_PRECISIONS else None

    def _change_groups_in_message(self, attempt: BuildAttempt, failure_message: str) -> BuildAttempt | None:
        """Returns an attempt that changes the layers in an error message; None if none of them can be changed.

        In a fused region, layer constraints are dropped first. If that is not enough, the precision of layers with Q/DQ
        is raised, because Q/DQ nodes are in the graph. The precision of a quantized layer that is named individually is
        raised at once.
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
        changed = (
            replace(attempt, name=NAMED_GROUPS_CHANGED, unconstrained=(*attempt.unconstrained, *constrained_groups))
            if constrained_groups
            else None
        )
        return self._raise_group_precisions(changed or attempt, config, quantized_groups) or changed

    def _find_similar_groups(self, groups: Sequence[FusionGroup], config: PrecisionConfig) -> list[FusionGroup]:
        """Finds all groups with the operators and precision of one of the given groups, including the given groups."""

        def operators_and_precision(group: FusionGroup) -> tuple[str, ...]:
            return config.precision_of(group), *(self.network.get_layer(name).op_type for name in group.layers)

        signatures = set(map(operators_and_precision, groups))
        return [group for group in self.network.groups if operators_and_precision(group) in signatures]

    def _raise_group_precisions(
        self, attempt: BuildAttempt, config: PrecisionConfig, groups: Sequence[FusionGroup]
    ) -> BuildAttempt | None:
        higher = {group.name: above for group in groups if (above := next_higher_precision(group, config)) is not None}
        return (
            replace(attempt, name=NAMED_GROUPS_CHANGED, raised_groups={**attempt.raised_groups, **higher})
            if higher
            else None
        )


def next_higher_precision(group: FusionGroup, config: PrecisionConfig) -> Precision | None:
    """Returns the precision to which the ladder raises a group; None if there is none.

    A quantized group is raised to the default float precision of the other groups. Any other group is raised to FP32.
    """
    precision = config.precision_of(group)
    if (
        precision in QUANTIZED_TYPES
        and config.other in group.allowed_precisions
        and config.other not in QUANTIZED_TYPES
    ):
        return config.other
    return Precision.FP32 if precision is not Precision.FP32 and Precision.FP32 in group.allowed_precisions else None


def find_groups_in_message(message: str, network: Network) -> tuple[list[FusionGroup], list[FusionGroup]]:
    """Finds the groups that a builder message names individually, and the groups in fused regions that it names.

    If the message names no layer, the tensor in the name of an added Q, DQ or Cast counts.
    """
    layer_finder = LayerFinder(network)
    # The words before "for" can be names of layers too.
    text = "\n".join(
        line.rpartition(" for node " if " for node " in line else " for ")[2]
        for line in FUSED_REGION_PATTERN.sub("", message).splitlines()
    )
    named_layers = find_layers_in_message(ADDED_NODE_PATTERN.sub("", text), network) or [
        layer_finder.layer_names[index]
        for token in ADDED_NODE_PATTERN.findall(text)
        if (index := layer_finder.find_layer_position(token)) is not None
    ]
    region_layers: list[str] = []
    for match in FUSED_REGION_PATTERN.finditer(message):
        own_groups, _, last = match[1].partition("...")
        ends = [
            index
            for end in (own_groups, last or own_groups)
            if (index := layer_finder.find_layer_position(end.partition(" + ")[0])) is not None
        ]
        region_layers += layer_finder.layer_names[min(ends) : max(ends) + 1] if ends else []
    own_groups, region_groups = (
        {group.name: group for layer in layers if (group := network.find_group(layer)) is not None}
        for layers in (named_layers, region_layers)
    )
    return list(own_groups.values()), [group for name, group in region_groups.items() if name not in own_groups]


ADDED_NODE_PATTERN = re.compile(
    r"(?<![^\s,()\[\]{}])[^\s,()\[\]{}]+" + ADDED_NODE_SUFFIX.pattern.removesuffix("$") + r"(?=[\s.,)\]}]|$)"
)
"""The name of a node that a lowering added, within a text."""


def find_layers_in_message(message_text: str, network: Network) -> list[str]:
    """Finds the layers whose names are in a message, in the order of the message.

    If several names match at one position, the longest is chosen.
    """
    names_by_position: dict[int, str] = {}
    for layer in network.layers:
        if layer.name not in message_text:
            continue
        for match in re.finditer(rf"(?<![\w/]){re.escape(layer.name)}(?![^\W_]|/)", message_text):
            if len(layer.name) > len(names_by_position.get(match.start(), "")):
                names_by_position[match.start()] = layer.name
    return list(dict.fromkeys(names_by_position[position] for position in sorted(names_by_position)))


class NoEngineError(TrtTuiError):
    """The error for a config for which no engine could be built.

    Attributes:
        attempts: The build attempts of the fallback ladder; empty if it was not used.
    """

    attempts: tuple[BuildAttempt, ...] = ()


class BuildError(NoEngineError):
    """The error for a build that TensorRT's builder could not complete.

    Attributes:
        details: The last verbose messages of the builder.
        is_refused: True if the builder has no implementation for the precisions; False for other causes, such as
            memory.
    """

    def __init__(
        self, title: str, cause: str = "", next_step: str = "", details: tuple[str, ...] = (), is_refused: bool = True
    ) -> None:
        super().__init__(title, cause, next_step)
        self.details = details
        self.is_refused = is_refused


class NetworkParseError(NoEngineError, InputError):
    """The error for a network that TensorRT's parser refuses.

    Attributes:
        node: The node at which the parser stopped; "" if it names none.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", node: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.node = node


LAYERNORM_WARNING_PREFIX = "Detected layernorm nodes in FP16"
"""Beginning of the warning about LayerNorms in FP16. TensorRT 8 names them in the warning, 9 and later in the next
verbose message."""

_KNOWN_WARNINGS = (
    (
        re.compile(
            r"Weights \[name=(?P<named>.*)\] had the following issues when converted to (?P<type>\w+):[\s-]*"
            r"(?P<what>.*?)\.?$",
            re.S,
        ),
        "{named} in {type}: {what}",
    ),
    (
        re.compile(r"Missing scale and zero-point for tensor (?P<named>.*), expect fall back"),
        "no range for {named}: its producer and consumers fall back from INT8",
    ),
    (
        re.compile(r"No implementation of layer (?P<named>.*) obeys the requested constraints"),
        "no implementation of {named} has its precision: TensorRT took the fastest",
    ),
    (
        re.compile(LAYERNORM_WARNING_PREFIX + r"[.:]\s*(?P<named>.+)", re.S),
        "LayerNorm in FP16, which may overflow after an attention: {named}",
    ),
    (
        re.compile(r"^(?P<named>.+): IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension"),
        "{named} reshapes to a computed size that might be 0: resolved at run time, it may take much memory",
    ),
)
_SOURCE_LOCATION_PATTERN = re.compile(r"^\w+\.(?:cpp|h|cu):\d+:\s*")

MAX_LISTED_WARNINGS = 5
"""The maximum number of listed warnings of the parser and the builder in one run."""

_MAX_NAME_CHARACTERS = 120
"""The maximum number of characters of the names in a warning."""


def list_known_warnings(messages: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the short form of each recognised warning of a builder, without repetitions.

    Args:
        messages: Levels and texts of the messages, in order.
    """
    warnings: dict[str, None] = {}
    for text in _join_continued_warnings(messages):
        for pattern, template in _KNOWN_WARNINGS:
            if (match := pattern.search(text)) is not None:
                parts = match.groupdict()
                if len(parts["named"]) > _MAX_NAME_CHARACTERS:
                    parts["named"] = f"{parts['named'][: _MAX_NAME_CHARACTERS - 1]}…"
                warnings[template.format_map(parts)] = None
                break
    return tuple(warnings)


def limited_list_lines(texts: Sequence[str], noun: str = "warning") -> list[str]:
    """Returns some texts as indented lines: the first ones, and a last line with the number of the others.

    Args:
        noun: The noun that is counted.
    """
    more_count = len(texts) - MAX_LISTED_WARNINGS
    return [
        *(f"  {text}" for text in texts[:MAX_LISTED_WARNINGS]),
        *([f"  and {counted_noun_text(more_count, f'more {noun}')}"] if more_count > 0 else []),
    ]


def short_message_lines(messages: Sequence[tuple[str, str]]) -> list[str]:
    """Returns a summary of the messages of one build: the recognised warnings, and the number of all errors and
    warnings.

    Args:
        messages: Levels and texts of the messages, in order.
    """
    warnings = limited_list_lines(list_known_warnings(messages))
    counts = [
        (len({text for severity, text in messages if severity == level}), level) for level in ("error", "warning")
    ]
    printed_text = " and ".join(counted_noun_text(count, level) for count, level in counts if count)
    return [
        *(["warnings of parser and builder:", *warnings] if warnings else []),
        *([f"TensorRT printed {printed_text} during the build; --verbose shows them."] if printed_text else []),
    ]


def _join_continued_warnings(messages: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the texts of warnings. The parts of a warning in several messages are joined."""
    pending_text = ""
    for severity, text in messages:
        text = _SOURCE_LOCATION_PATTERN.sub("", text.strip())
        if severity == "warning" and pending_text and text.startswith("-"):
            pending_text = f"{pending_text} {text}"
            continue
        if pending_text:
            yield pending_text
        pending_text = text if severity == "warning" else ""
    if pending_text:
        yield pending_text
