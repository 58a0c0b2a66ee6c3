"""The forms of a gated graph, in which runtime inputs (gates) select the precision of each group, by speed and memory.

A gate is the runtime input that selects the precision of a group. If memory runs out, the next form is used. On a CPU
gates are control flow, which computes only the selected branch. A network of very many small layers has gates as data
on a CPU too, because such a session takes a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial

from trt_tui.core.data.adaptive_runner import AdaptiveRunner, OutputJoin, load_adaptive_runner, load_single_mode_runner
from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
from trt_tui.core.network.network import Network
from trt_tui.core.network.small_layers import collect_garbage_and_trim_memory, has_many_small_layers
from trt_tui.core.runner import Backend, ExecutionMode, Runner

CONTROL_FLOW_MODE = "gates as control flow"
"""The name of the execution mode with gates as control flow on a device."""


class GatedGraphLoader:
    """The loader of a gated graph, in which runtime inputs select precisions, in the fastest form for which memory
    suffices.

    Args:
        samples: The samples, whose memory fallbacks record the form that earlier executions needed.
        description: The kind of execution in a few words.
        network: The network whose gated graphs are loaded.
    """

    def __init__(self, backend: Backend, samples: Samples, description: str, network: Network) -> None:
        self._backend, self._samples, self._description, self._network = backend, samples, description, network
        self._memory_fallbacks = samples.memory_fallbacks.get_fallback_state(description)
        self._piecewise_runner: PiecewiseRunner | None = None

    @cached_property
    def _graph_forms(self) -> list[tuple[str, Backend, bool]]:
        """The forms in which the gated graph can be executed, the fastest first: name, backend, and True if gates are
        data."""
        backend = self._backend
        forms = [("", backend, False)]
        if backend.capabilities.has_device or self._has_many_small_layers_on_cpu:
            forms = [("", backend, True), (CONTROL_FLOW_MODE, backend, False)]
        if (host := backend.get_host_backend()) is not None:
            forms.append((HOST_MODE, host, False))
        return forms

    @cached_property
    def _has_many_small_layers_on_cpu(self) -> bool:
        """True on a CPU if the network has so many small layers that loading a session costs more than executing it."""
        return not self._backend.capabilities.has_device and has_many_small_layers(self._network.model.graph)

    @property
    def uses_gates_as_data(self) -> bool:
        return self._graph_forms[self._memory_fallbacks.form_index][2]

    def switch_to_next_graph_form(self) -> bool:
        """Switches to the next form of the gated graph, which needs less memory; returns False if there is none."""
        fallbacks = self._memory_fallbacks
        if fallbacks.form_index + 1 == len(self._graph_forms):
            return False
        fallbacks.form_index, fallbacks.strategy, fallbacks.max_rows = fallbacks.form_index + 1, 0, None
        return True

    def load_graph(self, gated_graph: GatedGraph, on_mode_change: Callable[[ExecutionMode], None] | None, *,
                   allow_data_gates: bool = True, extra_inputs: Collection[str] = (),
                   output_joins: Mapping[str, OutputJoin] | None = None,
                   few_executions: bool = False) -> AdaptiveRunner:
        """Loads a gated graph in the current form: gates as data or as control flow, on a device or on the host.

        Args:
            on_mode_change: Callback of `load_adaptive_runner`, which describes all arguments that are missing here.
            allow_data_gates: False for a graph whose gates are control flow in every form.
            few_executions: True if the graph will be executed only a few times.
        """
        form = self._memory_fallbacks.form_index + (self.uses_gates_as_data and not allow_data_gates)
        name, backend, allow_data_gates = self._graph_forms[form]
        if allow_data_gates and not self._has_many_small_layers_on_cpu:
            load_pieces = None if few_executions else partial(self._load_piecewise_runner, backend, gated_graph, True)
            return load_adaptive_runner(backend, gated_graph.model, self._samples, self._description,
                                        keep_on_device=True, on_mode_change=on_mode_change, extra_inputs=extra_inputs,
                                        joins=output_joins, allow_host=False, low_memory=True,
                                        few_executions=few_executions, load_on_device=load_pieces)
        optimize = not allow_data_gates  # for small layers the optimization takes longer than it saves
        whole: Callable[[], Runner] = partial(backend.load, gated_graph.model, low_memory=True,
                                              few_executions=few_executions, optimize=optimize)
        load = whole if few_executions else partial(self._load_piecewise_runner, backend, gated_graph, optimize)
        if self._has_many_small_layers_on_cpu:
            collect_garbage_and_trim_memory()
        name = name if form == self._memory_fallbacks.form_index else ""
        runner = load_single_mode_runner(name, load, backend, gated_graph.model, self._samples, self._description,
                                         on_mode_change, extra_inputs, output_joins)
        if self._has_many_small_layers_on_cpu:
            collect_garbage_and_trim_memory()  # frees the copies from which the pieces were loaded
        return runner

    def _load_piecewise_runner(self, backend: Backend, gated_graph: GatedGraph, optimize: bool,
                               on_mode_change: Callable[[ExecutionMode], None] | None = None) -> Runner:
        runner = PiecewiseRunner.load_in_pieces(backend, gated_graph, optimize=optimize, on_mode_change=on_mode_change)
        self._piecewise_runner = runner if isinstance(runner, PiecewiseRunner) else None
        return runner
