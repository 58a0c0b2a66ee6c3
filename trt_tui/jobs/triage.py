"""An engine that is further from its simulation than rounding explains: where, and whether a fusion barrier mends it.

Such a gap is no margin to search with: a kernel computes something else, and more layers in FP32 may or may not happen
to avoid it. Errors inside the engine show where it begins. Barriers around that group, or those of a marked engine that
does what was simulated, halved as long as half of them suffices, keep the kernel from being chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trt_tui.core.measure.agreement import SUMS_DB, gap_db, parting
from trt_tui.core.measure.comparison import MARKED, EngineErrors, EngineResult, GroupErrors, Verdict
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.jobs.steps import Steps
from trt_tui.words import decibels, first_few, plural, with_unit

REASON = "search:triage"
"""Who makes a fusion barrier that a search has found."""


class Looks(Protocol):
    """What looks into a config's engine and its simulation."""

    def inside(self, config: PrecisionConfig) -> Steps[EngineErrors | None]:
        """Returns errors inside the config's engine, of a marked one where the release tells nothing of one as built;
        None where there is no engine to look into."""

    def layers(self, config: PrecisionConfig) -> Steps[Mapping[str, GroupErrors]]:
        """Returns the simulated errors at the groups of a config, by name."""


@dataclass(frozen=True)
class Triaged:
    """What came of it: fusion barriers with which the engine does what was simulated, by tensor; what to tell."""

    said: tuple[str, ...]
    barriers: Mapping[str, Barrier] = field(default_factory=dict)


def unexplained(simulated: Verdict | None, engine: Verdict | None) -> bool:
    """Whether rounding and sums in FP16 do not explain how much an engine is worse than its simulation."""
    if simulated is None or engine is None or simulated.bad:
        return False
    gap = gap_db(simulated, engine)
    return bool(engine.bad) or gap is not None and gap > SUMS_DB


class Triage:
    """One triage.

    Args:
        config: What was built.
        simulated: What it was to yield.
        build: Returns the engine of a config, judged.
        left: How many more may be built.
    """

    def __init__(self, network: Network, config: PrecisionConfig, simulated: Verdict, looks: Looks,
                 build: Callable[[PrecisionConfig], Steps[EngineResult]], left: Callable[[], int]) -> None:
        self._network, self._config, self._simulated = network, config, simulated
        self._looks, self._build, self._may = looks, build, left
        self._spent, self._short = 0, False

    def _left(self) -> int:
        """How many more may be built, the marked engine counted."""
        return self._may() - self._spent

    def run(self) -> Steps[Triaged]:
        """Returns what came of it."""
        if self._left() <= 0:
            return Triaged(("--max-builds leaves none to find where",))
        inside = yield from self._looks.inside(self._config)
        if inside is None or inside.missing:
            return Triaged((f"where is not known: {inside.missing}" if inside is not None else "where is not known",))
        simulated = yield from self._looks.layers(self._config)
        parts = parting(self._network, simulated, inside)
        said = [f"it begins at {parts.group}: {parts.said}"] if parts is not None else []
        if inside.how == MARKED:
            if unexplained(self._simulated, inside.verdict):
                return Triaged((*said, "with every group's result as an output too: no fusion is to blame, and no "
                                "barrier helps; another tactic source or optimization level may"))
            said = ["with every group's result as an output it does what was simulated: a fusion computes something "
                    "else"]
            self._spent = 1
            tensors = self._marks(self._network.groups)
            found = yield from self._narrowed(tensors)
        else:
            tensors = self._around(parts.group) if parts is not None else []
            found = tensors if tensors and (yield from self._sound(tensors)) else []
        if self._short:
            return Triaged((*said, "--max-builds leaves too few to find which fusion"))
        if not found:
            what = "no fusion barrier was found that mends it" if tensors else "no group at which it begins can be told"
            return Triaged((*said, what))
        return Triaged((*said, f"{plural(len(found), 'fusion barrier')} at {first_few(found)}: the engine does what "
                        "was simulated"), {tensor: Barrier(REASON) for tensor in found})

    def _marks(self, groups: Sequence[Group]) -> list[str]:
        """The results of groups that can be outputs, in network order."""
        gone = {*self._config.of(Barrier), *self._network.behind}
        return [tail for tail in dict.fromkeys(group.tail for group in groups)
                if tail not in gone and not Barrier().refused(self._network, tail)]

    def _around(self, name: str) -> list[str]:
        """The results that a group reads, and its own."""
        group = self._network.group(name)
        before = [found for tensor in group.inputs if (maker := self._network.producer.get(tensor)) is not None
                  and (found := self._network.group_of(maker)) is not None]
        return self._marks([*before, group])

    def _sound(self, tensors: Sequence[str]) -> Steps[bool]:
        """Returns whether the engine does what was simulated with some results as outputs."""
        if self._left() <= 0:
            self._short = True
            return False
        try:
            result = yield from self._build(self._config.with_moves({one: Barrier(REASON) for one in tensors}))
        except CancelledError:
            raise
        except TrtTuiError:  # an engine that does not build is none that does as simulated
            return False
        return result.as_asked and result.verdict is not None and not unexplained(self._simulated, result.verdict)

    def _narrowed(self, tensors: list[str]) -> Steps[list[str]]:
        """Returns fewer of some results that suffice, as far as builds are left; all of them suffice."""
        while len(tensors) > 1:
            half = len(tensors) // 2
            for part in (tensors[:half], tensors[half:]):
                if (yield from self._sound(part)):
                    tensors = part
                    break
            else:
                return tensors
        return tensors


def gap_said(simulated: Verdict, engine: Verdict) -> str:
    """How far an engine is from its simulation, in words."""
    if engine.bad:
        return f"{engine.bad} NaN or Inf, which the simulation does not have"
    gap = gap_db(simulated, engine)
    return f"{with_unit(decibels(gap, mark=''))} worse than simulated, which rounding does not explain"
