"""The rungs of a build: what is tried, one after the other, if no engine can be built as asked.

For releases that take precisions beside the graph (8.6, and 10 with ``--weak``) the rungs are: all precisions obeyed;
those of the layers that the builder's message names dropped or raised by one step; where it names none, all as asked
with the lowest effort (TensorRT 8.6 ends INT8 builds with "buildRefitEngine: Assertion engine failed" at level 3 that
it does at level 0); all precisions preferred; no precision given. In a strongly typed release precisions are in the
graph, so the named layers can be raised and the effort lowered, but nothing else can be done. What is built in other
precisions is not the engine that was asked for; `Rung` says how it differs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.codes import CODES
from trt_tui.core.engines.inspector import ADDED, REGION, LayerFinder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import first_few

ASKED, NAMED, EASED, PREFER, FREE = "asked", "named", "eased", "prefer", "free"
"""The rungs, the highest first."""

TITLES = {ASKED: "as asked", NAMED: "named layers changed", EASED: "the lowest effort (--optimization-level 0)",
          PREFER: "precisions preferred, not obeyed", FREE: "no precision told"}
"""Their names in reports."""

NAMED_TRIES = 6
"""How often layers that a message names are changed before the next rung; each try is a build."""

ONE_BY_ONE = 3
"""After so many of these tries, all groups with the same operators as the named ones are changed too: an operator
without an implementation in one place mostly has none elsewhere, and a message names one at a time."""

REASON = "builder"
"""Who set what a rung raises, as `trt_tui.core.precision.Choice` has it."""

_MOST = 4


@dataclass(frozen=True)
class Rung:
    """One try at building a config.

    Attributes:
        name: One of this module's rungs.
        raised: Groups that were given a higher precision than asked, with that precision.
        let_go: Groups whose precision was left to the builder.
        failed: Why it gave no engine, "" if it gave one.
    """

    name: str = ASKED
    raised: Mapping[str, Precision] = field(default_factory=dict)
    let_go: tuple[str, ...] = ()
    failed: str = ""

    @property
    def as_asked(self) -> bool:
        """Whether the precisions are those that were asked for."""
        return self.name in (ASKED, EASED)

    @property
    def said(self) -> str:
        """How it differs from what was asked, in words."""
        if self.name != NAMED:
            return TITLES[self.name]
        by_precision: dict[Precision, list[str]] = {}
        for group, precision in self.raised.items():
            by_precision.setdefault(precision, []).append(group)
        parts = [f"{first_few(one, _MOST)} raised to {precision.label}" for precision, one in by_precision.items()]
        return "; ".join([*parts, *([f"{first_few(self.let_go, _MOST)} let go"] if self.let_go else [])])

    def config(self, network: Network, asked: PrecisionConfig) -> PrecisionConfig:
        """The config that is lowered for this try."""
        for name, precision in self.raised.items():
            asked = asked.with_groups([network.group(name)], precision, REASON)
        return asked


def one_line(text: str) -> str:
    """A library's message of several lines as one."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def rung_lines(rungs: Sequence[Rung], otherwise: Mapping[str, Precision]) -> list[str]:
    """What was tried, a line each, and what came out.

    Args:
        otherwise: Groups that run in a precision other than asked, with that precision.
    """
    lines = [f"{rung.said}: {f'failed: {rung.failed}' if rung.failed else 'built'}" for rung in rungs]
    if rungs and not rungs[-1].failed and not rungs[-1].as_asked:
        lines.append(f"built in another precision than asked: {made_words(otherwise)}")
    return lines


def made_words(otherwise: Mapping[str, Precision]) -> str:
    """The groups that an engine runs in a precision other than asked, by that precision."""
    by_precision: dict[Precision, list[str]] = {}
    for group, precision in otherwise.items():
        by_precision.setdefault(precision, []).append(group)
    return "; ".join(f"{first_few(one, _MOST)} in {precision.label}" for precision, one in by_precision.items()) or (
        "nothing that TensorRT tells of")


class Ladder:
    """Goes down the rungs of one config.

    Args:
        told: Whether precisions are given beside the graph, and can therefore be left out.
        loosens: Whether any precision is given at first, so that the lower rungs differ from it.
        eases: Whether the builder's effort can be lowered.
    """

    def __init__(self, network: Network, config: PrecisionConfig, told: bool, loosens: bool, eases: bool) -> None:
        self.network, self.asked, self.told, self.loosens, self.eases = network, config, told, loosens, eases
        self._named = 0

    def below(self, rung: Rung, message: str) -> Rung | None:
        """What to try after a rung whose build ended with a message; None if nothing is left."""
        if rung.name in (ASKED, NAMED):
            changed = self._changed(rung, message) if self._named < NAMED_TRIES else None
            if changed is not None:
                self._named += 1
                return changed
            if self.eases and not self._named:
                return Rung(EASED)
        if rung.name in (ASKED, NAMED, EASED):
            return Rung(PREFER) if self.loosens else None
        return Rung(FREE) if rung.name == PREFER else None

    def _changed(self, rung: Rung, message: str) -> Rung | None:
        """The rung with the layers that a message names changed; None if it names none that can be changed.

        In a fused region, precisions that were given are dropped first. Only if that is not enough are layers
        that read codes, which Q/DQ in the graph make, raised. A layer that is named on its own is raised if it reads
        codes.
        """
        config = rung.config(self.network, self.asked)
        alone, within = named_groups(message, self.network)
        if self._named >= ONE_BY_ONE:
            alone = self._alike(alone, config)
        if not self.told:
            return self._raised(rung, config, [*alone, *within])
        loose = [group.name for group in (*alone, *within)
                 if config.precision_of(group) not in CODES and group.name not in rung.let_go]
        lower = [group for group in alone if config.precision_of(group) in CODES]
        if not loose and not lower:
            lower = [group for group in within if config.precision_of(group) in CODES]
            loose = [group.name for group in lower]
        changed = replace(rung, name=NAMED, let_go=(*rung.let_go, *loose)) if loose else None
        return self._raised(changed or rung, config, lower) or changed

    def _alike(self, groups: Sequence[Group], config: PrecisionConfig) -> list[Group]:
        """The groups, and those of the same operators in the same precision."""
        def make(group: Group) -> tuple[str, ...]:
            return config.precision_of(group), *(self.network.layer(name).op_type for name in group.layers)

        makes = set(map(make, groups))
        return [group for group in self.network.groups if make(group) in makes]

    def _raised(self, rung: Rung, config: PrecisionConfig, groups: Sequence[Group]) -> Rung | None:
        higher = {group.name: above for group in groups if (above := one_step_up(group, config)) is not None}
        return replace(rung, name=NAMED, raised={**rung.raised, **higher}) if higher else None


def one_step_up(group: Group, config: PrecisionConfig) -> Precision | None:
    """What reads codes to what surrounds it, any other precision to FP32; None if there is no higher one."""
    now = config.precision_of(group)
    if now in CODES and config.other in group.allowed and config.other not in CODES:
        return config.other
    return Precision.FP32 if now is not Precision.FP32 and Precision.FP32 in group.allowed else None


def named_groups(message: str, network: Network) -> tuple[list[Group], list[Group]]:
    """The groups that a builder's message names: those named on their own, and those of the fused regions it names.

    If no layer is named, a tensor in the name of a Q, DQ or Cast that a lowering added counts.
    """
    names = LayerFinder(network)
    text = "\n".join(_object(REGION.sub("", line)) for line in message.splitlines())
    alone = _named(ADDED_TOKEN.sub("", text), network) or [
        names.order[place] for token in ADDED_TOKEN.findall(text) if (place := names.place(token)) is not None]
    within: list[str] = []
    for match in REGION.finditer(message):
        first, _, last = match[1].partition("...")
        ends = [place for end in (first, last or first) if (place := names.place(end.partition(" + ")[0])) is not None]
        within += names.order[min(ends):max(ends) + 1] if ends else []
    first, others = ({group.name: group for layer in layers if (group := network.group_of(layer)) is not None}
                     for layers in (alone, within))
    return list(first.values()), [group for name, group in others.items() if name not in first]


ADDED_TOKEN = re.compile(r"(?<![^\s,()\[\]{}])[^\s,()\[\]{}]+" + ADDED.pattern.removesuffix("$") + r"(?=[\s.,)\]}]|$)")
"""A node that a lowering added, as it occurs in a text."""


def _object(line: str) -> str:
    """The part of a message that names what failed, if it is marked; words before it may also be names of layers."""
    return line.rpartition(" for node ")[2] if " for node " in line else line.rpartition(" for ")[2]


def _named(text: str, network: Network) -> list[str]:
    """The layers that a text names, in that order; of several at one place the one with the longest name."""
    found: dict[int, str] = {}
    for layer in network.layers:
        if layer.name not in text:
            continue
        for match in re.finditer(rf"(?<![\w/]){re.escape(layer.name)}(?![^\W_]|/)", text):
            if len(layer.name) > len(found.get(match.start(), "")):
                found[match.start()] = layer.name
    return list(dict.fromkeys(found[place] for place in sorted(found)))
