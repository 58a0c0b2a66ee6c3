"""In which form a gated graph runs, and where: as data on a device, as control flow there, at last on the host.

On a CPU gates are control flow, which computes one branch alone; of very many small layers they are data, whose
session takes a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial

from trt_tui.core.data.fitted import Fitted, Join, fitted, fitted_as
from trt_tui.core.data.portions import ON_HOST
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.measure.piecewise import Piecewise
from trt_tui.core.network.network import Network
from trt_tui.core.network.small_layers import has_many_small_layers, release_memory
from trt_tui.core.runner import Backend, Level, Runner

CONTROL_FLOW = "gates as control flow"
"""The name of a level."""


class Forms:
    """The forms of one kind of gated graphs.

    Args:
        samples: What they are fed; what was found out before is known of them.
        what: What is run, in a few words.
        network: The network whose gated graphs they are.
    """

    def __init__(self, backend: Backend, samples: Samples, what: str, network: Network) -> None:
        self._backend, self._samples, self._what, self._network = backend, samples, what, network
        self._found = samples.portions.of(what)
        self._pieces: Piecewise | None = None

    @cached_property
    def _forms(self) -> list[tuple[str, Backend, bool]]:
        """Name, backend and whether gates are data, the fastest first."""
        backend = self._backend
        forms = [("", backend, False)]
        if backend.capabilities.device or self._small:
            forms = [("", backend, True), (CONTROL_FLOW, backend, False)]
        if (host := backend.on_host()) is not None:
            forms.append((ON_HOST, host, False))
        return forms

    @cached_property
    def _small(self) -> bool:
        """True on a CPU if sessions cost more than runs."""
        return not self._backend.capabilities.device and has_many_small_layers(self._network.model.graph)

    @property
    def data(self) -> bool:
        """Whether gates are data."""
        return self._forms[self._found.form][2]

    def lower(self) -> bool:
        """Goes on with the next form; False where there is none."""
        found = self._found
        if found.form + 1 == len(self._forms):
            return False
        found.form, found.way, found.rows = found.form + 1, 0, None
        return True

    def load(self, gated: Gated, told: Callable[[Level], None] | None, *, data: bool = True, more: Collection[str] = (),
             joins: Mapping[str, Join] | None = None, few: bool = False) -> Fitted:
        """Loads a graph of this form.

        Args:
            told: As `fitted` takes it, as well as the arguments that are not named here.
            data: False for a graph whose gates are control flow, whatever memory suffices for.
            few: Few runs are to come.
        """
        form = self._found.form + (self.data and not data)
        name, backend, data = self._forms[form]
        if data and not self._small:
            return fitted(backend, gated.model, self._samples, self._what, bound=True, told=told, more=more,
                          joins=joins, host=False, lean=True, few=few)
        optimize = not data  # it takes longer than it saves where layers are small
        whole: Callable[[], Runner] = partial(backend.load, gated.model, lean=True, few=few, optimize=optimize)
        load = whole if few else partial(self._in_pieces, backend, gated, optimize)
        if self._small:
            release_memory()
        name = name if form == self._found.form else ""
        runner = fitted_as(name, load, backend, gated.model, self._samples, self._what, told, more, joins)
        if self._small:
            release_memory()  # the copies that pieces were
        return runner

    def anew(self, inputs: Collection[str]) -> float:
        """See `Piecewise.anew`; all of it where runs are not in pieces."""
        return self._pieces.anew(inputs) if self._pieces is not None else 1.0

    def _in_pieces(self, backend: Backend, gated: Gated, optimize: bool) -> Runner:
        runner = Piecewise.load(backend, gated, optimize=optimize)
        self._pieces = runner if isinstance(runner, Piecewise) else None
        return runner
