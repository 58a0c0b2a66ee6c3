"""In which form a gated graph runs, and where: as data on a device, as control flow there, at last on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial

from trt_tui.core.data.fitted import Fitted, Join, fitted, fitted_as
from trt_tui.core.data.portions import ON_HOST
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.measure.piecewise import Piecewise
from trt_tui.core.runner import Backend, Level, Runner

CONTROL_FLOW = "gates as control flow"
"""The name of a level."""


class Forms:
    """The forms of one kind of gated graphs.

    Args:
        samples: What they are fed; what was found out before is known of them.
        what: What is run, in a few words.
    """

    def __init__(self, backend: Backend, samples: Samples, what: str) -> None:
        self._backend, self._samples, self._what = backend, samples, what
        self._found = samples.portions.of(what)
        self._pieces: Piecewise | None = None

    @cached_property
    def _forms(self) -> list[tuple[str, Backend, bool]]:
        """Name, backend and whether gates are data, the fastest first."""
        backend = self._backend
        forms = [("", backend, False)]
        if backend.capabilities.device:
            forms = [("", backend, True), (CONTROL_FLOW, backend, False)]
        if (host := backend.on_host()) is not None:
            forms.append((ON_HOST, host, False))
        return forms

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
        if data:
            return fitted(backend, gated.model, self._samples, self._what, bound=True, told=told, more=more,
                          joins=joins, host=False, lean=True, few=few)
        whole: Callable[[], Runner] = partial(backend.load, gated.model, lean=True, few=few)
        load = whole if few else partial(self._in_pieces, backend, gated)
        name = name if form == self._found.form else ""
        return fitted_as(name, load, backend, gated.model, self._samples, self._what, told, more, joins)

    def anew(self, inputs: Collection[str]) -> float:
        """See `Piecewise.anew`; all of it where runs are not in pieces."""
        return self._pieces.anew(inputs) if self._pieces is not None else 1.0

    def _in_pieces(self, backend: Backend, gated: Gated) -> Runner:
        runner = Piecewise.load(backend, gated)
        self._pieces = runner if isinstance(runner, Piecewise) else None
        return runner
