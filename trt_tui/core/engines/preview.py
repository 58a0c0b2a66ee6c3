"""What a builder would make of a config, as it says itself without a GPU: nothing was run."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.inspector import IDLE, QDQ, EngineLayer, EngineReport
from trt_tui.core.engines.made import Made, differs, made_of
from trt_tui.core.engines.sources import one_of
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision
from trt_tui.words import first_few

NO_EFFECT, BREAKS_MHA, ALONE, SPLITS = "no effect", "breaks MHA", "stand-alone Q/DQ", "splits"
"""Marks of a group: the engine is the same without its choice; its choice takes a fused attention apart; codes that it
reads are made, or taken apart, by a layer of their own; its fusion barrier takes a kernel apart."""


_CODE = re.compile(r"_0x[0-9a-f]{8,}$")

MHA = "mha"
"""The word for the kernel of a fused attention."""


@dataclass(frozen=True)
class Kernel:
    """A layer of an engine by what it is: names and tactics differ from build to build.

    Attributes:
        word: The builder's type of it, or `MHA` for a fused attention.
        takes: Types of what it reads, "" where it is none of ours; ``gives`` of what it writes.
        nodes: Names of the network's layers in it, sorted.
        sums: What its product, or QK and PV of an attention, are summed in, "" or empty where it is not told.
        code: Which code the builder has generated for it, "" where that is not told.
    """

    word: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    nodes: tuple[str, ...]
    sums: tuple[str, ...] = ()
    code: str = ""

    @property
    def types(self) -> str:
        """What goes in and comes out: ``INT8 > FP16``."""
        sides = ["+".join(dict.fromkeys(label for label in side if label)) or "?" for side in (self.takes, self.gives)]
        return " > ".join(sides)

    @property
    def said(self) -> str:
        """With the layers in it, those in the scope of the first without it: ``gemm INT8 > FP16: /a/q/MatMul, Add``."""
        sums = f", sums {'+'.join(dict.fromkeys(self.sums))}" if any(self.sums) else ""
        scope = self.nodes[0].rpartition("/")[0] if self.nodes else ""
        names = [*self.nodes[:1], *(name.removeprefix(f"{scope}/") if scope else name for name in self.nodes[1:])]
        return f"{self.word} {self.types}{sums}" + (f": {first_few(names, 4)}" if names else "")


@dataclass(frozen=True)
class Barred:
    """What a fusion barrier does to an engine: the kernels that are there without it alone, and with it alone."""

    lost: tuple[Kernel, ...]
    gained: tuple[Kernel, ...]

    @property
    def said(self) -> str:
        """What it costs, in words."""
        if not (self.lost or self.gained):
            return "nothing was fused across it"
        lost, more = (first_few([kernel.said for kernel in kernels], 2) for kernels in (self.lost, self.gained))
        return f"{more} in place of {lost}" if lost else f"adds {more}"


@dataclass(frozen=True)
class Refusal:
    """Why there is no preview.

    Attributes:
        node: The network's layer that the builder names, "" where it names none.
        absent: TensorRT-RTX is not there, or does not load; no config has a preview then.
    """

    title: str
    cause: str = ""
    next_step: str = ""
    node: str = ""
    absent: bool = False

    @property
    def said(self) -> str:
        """In one line."""
        return ": ".join(filter(None, (self.title, self.cause)))


@dataclass(frozen=True)
class Preview:
    """What a builder makes of a config.

    Attributes:
        release: The builder's release, like "1.7.1".
        target: The compute capability that it builds for, as (major, minor); ``here`` where a GPU of it is here.
        made: What became of each group, by name.
        kernels: The layers of the engine; what works on constants alone is left out.
        qdq: How many unfused Q or DQ there are among them.
        seconds: From the typed network to the listing.
        no_effect: Groups whose choice changes nothing in the engine; ``breaks_mha`` those whose choice takes a fused
            attention apart. None while that is not known.
        refused: Why there is nothing of all this; None where there is.
        remarks: What parser and builder warn of, by group name; see `trt_tui.core.engines.remarks`.
    """

    release: str = ""
    target: tuple[int, int] = (0, 0)
    here: bool = False
    made: Mapping[str, Made] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    qdq: int = 0
    seconds: float = 0.0
    no_effect: tuple[str, ...] | None = None
    breaks_mha: tuple[str, ...] | None = None
    barred: Mapping[str, Barred] = field(default_factory=dict)
    refused: Refusal | None = None
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Which builder for which GPU: ``RTX 1.7, SM89``."""
        release = ".".join(self.release.split(".")[:2])
        return f"RTX {release}, SM{self.target[0]}{self.target[1]}"

    def otherwise(self, network: Outline, config: PrecisionConfig) -> tuple[str, ...]:
        """Names of the groups that do not run as a config asks, in network order."""
        return tuple(group.name for group in network.groups if differs(group, config, self.made))

    def marks(self, group: Group, config: PrecisionConfig) -> tuple[str, ...]:
        """What is to be said of a group of a config, the weightiest first."""
        made = self.made.get(group.name)
        found = []
        if made is not None and differs(group, config, self.made):
            seen = made.seen(group.seen_as(config.precision_of(group)))
            found.append(f"≠ {seen.label if seen is not None else '?'}")
        return (*found, *self.choice_marks(group))

    def choice_marks(self, group: Group) -> tuple[str, ...]:
        """What is to be said of a group whatever it is asked to run in."""
        made, found = self.made.get(group.name), []
        barred = [self.barred[tensor] for tensor in Barrier.subject.of(group) if tensor in self.barred]
        lost = [kernel for one in barred for kernel in one.lost]
        if group.name in (self.no_effect or ()) or barred and not any(one.lost or one.gained for one in barred):
            found.append(NO_EFFECT)
        if group.name in (self.breaks_mha or ()) or any(kernel.word == MHA for kernel in lost):
            found.append(BREAKS_MHA)
        elif any(one.lost or one.gained for one in barred):
            found.append(SPLITS)
        if made is not None and made.qdq:
            found.append(ALONE)
        return tuple(found)


def preview_of(report: EngineReport, network: Outline, release: str, target: tuple[int, int], seconds: float,
               here: bool = False) -> Preview:
    """What a listing says of each group."""
    qdq = sum(layer.kind == QDQ and not layer.prepares for layer in report.layers)
    return Preview(release, target, here, made_of(report, network), kernels_of(report), qdq, seconds)


def kernels_of(report: EngineReport) -> tuple[Kernel, ...]:
    """The engine layers of a listing that do something in each run, by what they are."""
    return tuple(Kernel(MHA if layer.is_mha else layer.type, _labels(layer.takes), _labels(layer.gives),
                        tuple(sorted(layer.nodes)), _labels(one_of(layer.sums)) if layer.sums else (), _code(layer))
                 for layer in report.layers if layer.kind != IDLE and not layer.prepares)


def _code(layer: EngineLayer) -> str:
    """What tells generated code apart: part of the tactic's name, and what all kernels of that name sum in."""
    match = _CODE.search(layer.tactic)
    return " ".join((match[0] if match is not None else "", *("+".join(_labels(pair)) for pair in layer.sums))).strip()


def _labels(types: Iterable[Precision | None]) -> tuple[str, ...]:
    return tuple(one.label if one is not None else "" for one in types)


def same_engine(one: Preview, other: Preview) -> bool:
    """Whether two previews are of engines with the same layers, and the same code in those that are generated."""
    return Counter(one.kernels) == Counter(other.kernels)


def gained(one: Preview, other: Preview) -> list[Kernel]:
    """The kernels of the other engine that this one lacks, in their order."""
    known = Counter(replace(kernel, code="") for kernel in one.kernels)
    found = []
    for kernel in (replace(kernel, code="") for kernel in other.kernels):
        if known[kernel] > 0:
            known[kernel] -= 1
        else:
            found.append(kernel)
    return found


def together(group: Group, made: Mapping[str, Made], network: Outline) -> tuple[Group, ...]:
    """A group and those that share its kernel, in network order."""
    found = made.get(group.name)
    names = {group.name, *(found.shares if found is not None else ())}
    return tuple(one for one in network.groups if one.name in names)


def nearest(known: Iterable[tuple[int, int]], gpu: tuple[int, int] | None, asked: tuple[int, int] | None = None
            ) -> tuple[int, int]:
    """What to build for: what is asked for, else the GPU here if it is known, else the nearest of the known ones."""
    offered = sorted(known)
    wanted = asked or gpu or (8, 9)
    return min(offered, key=lambda one: (abs(one[0] * 10 + one[1] - wanted[0] * 10 - wanted[1]), one), default=wanted)


# -- what a choice does to the engine ---------------------------------------------------------------------------------


def suspects(network: Outline, config: PrecisionConfig, preview: Preview) -> list[Group]:
    """Groups that were given a precision of their own and do not run in it, or lie in an attention that does not tell:
    their choice may do nothing."""
    def untold(group: Group) -> bool:
        made = preview.made.get(group.name)
        return made is not None and made.mha and made.seen(group.seen_as(config.precision_of(group))) is None

    return [group for group in network.groups if config.precision_of(group) is not config.default_for(group)
            and (differs(group, config, preview.made) or untold(group))]


def taken_apart(network: Outline, config: PrecisionConfig, preview: Preview) -> list[Group]:
    """Groups of attentions that are no one kernel, if some of it was given a precision of its own: those that were."""
    fused = {group.core for group in network.groups if group.core and (made := preview.made.get(group.name)) is not None
             and made.mha}
    return [group for group in network.groups if group.core and group.core not in fused
            and config.precision_of(group) is not config.default_for(group)]


def broken(network: Outline, chosen: Iterable[Group], without: Preview) -> tuple[str, ...]:
    """Which of some groups lie in attentions that are one kernel without their choices.

    Args:
        without: The preview of the config in which they have their defaults.
    """
    fused = {group.core for group in network.groups if group.core and (made := without.made.get(group.name)) is not None
             and made.mha}
    return tuple(group.name for group in chosen if group.core in fused)

