"""What errors are taken against where that is not FP32 of the network itself: a framework's outputs, another network.

Both yield tensors by the network's names, feed by feed of the same samples.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from trt_tui.core.data.dumps import Dump, Rows, open_dump, rows_of
from trt_tui.core.data.element_types import castable, is_float
from trt_tui.core.data.fitted import fitted
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.ends import ending_in
from trt_tui.core.measure.judge import Judged, tensor_outputs
from trt_tui.core.measure.tally import comparable
from trt_tui.core.network.network import Network
from trt_tui.core.network.reading import read_model
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural


class Outputs(Protocol):
    """Tensors of something else on the same samples.

    Attributes:
        name: What it is called beside figures.
        tensors: The tensors of the network that it has.
        beyond: Those that it has and the network lacks.
        files: What is read of it.
    """

    name: str
    tensors: frozenset[str]
    beyond: tuple[str, ...]
    files: tuple[Path, ...]

    def outputs(self, samples: Samples, index: int) -> dict[str, np.ndarray]:
        """Its tensors for a feed of some of the samples, in the network's types.

        Raises:
            InputError: they cannot be read or computed, or are of other shapes than the samples need.
        """

    def close(self) -> None:
        """Frees what it holds."""


@dataclass(frozen=True)
class Named:
    """A reference that was named, for the program.

    Attributes:
        name: What it is called beside figures.
        only_there: Tensors that it has and the network lacks.
        only_here: Outputs of the network that it lacks.
        metric: Whether the user's metric is taken of it; else of the network's own FP32 run.
        unjudged: What would be judged, did it have that.
    """

    name: str
    only_there: tuple[str, ...] = ()
    only_here: tuple[str, ...] = ()
    metric: bool = True
    unjudged: tuple[str, ...] = ()


def is_network(spec: str) -> bool:
    """Whether what was named as a reference is a network; else it is a dump of tensors."""
    return Path(spec).suffix.lower() == ".onnx"


class DumpedOutputs:
    """A dump as `Outputs`.

    Args:
        samples: All samples of the data, in their order: those that the dump was made of.
        inputs: Take the network's inputs from it in place of what the network computes.

    Raises:
        InputError: it has none of the network's tensors, or other shapes, or not as many samples.
    """

    def __init__(self, dump: Dump, network: Network, samples: Samples, *, inputs: bool = False) -> None:
        if samples.random:
            raise InputError(f"{dump.source} needs the samples that it was made of", "the inputs here are random",
                             "Name them with --data.")
        self.name = dump.source
        self.files = dump.files
        fed = {info.name for info in network.inputs}
        known = [name for name in dump.names if name in (fed if inputs else network.producer)]
        self.tensors = frozenset(known)
        self.beyond = tuple(name for name in dump.names
                            if name not in network.producer and name not in fed and name not in samples.label_names)
        if not known:
            raise nothing_common(dump.source, dump.names, network.name, tensor_outputs(network))
        self._types = {name: _declared(network, name) for name in known}
        self._rows = {name: Rows(dump, name) for name in known}
        self._each: dict[str, int] = {}
        for name in known:
            self._check(dump, network, samples, name)

    def _check(self, dump: Dump, network: Network, samples: Samples, name: str) -> None:
        """Holds a tensor's type and shape against the network's, and its rows against the samples."""
        member, shape = dump.iterations[0][name], network.shape(name)
        if not castable(member.dtype, self._types[name]):
            raise InputError(f"{name} is {member.dtype} in {dump.source}", f"in {network.name} it is "
                             f"{self._types[name]}", "Save what the framework computes at that tensor.")
        if shape is not None and (len(shape) != len(member.shape) or any(
                isinstance(wanted, int) and axis and size != wanted
                for axis, (wanted, size) in enumerate(zip(shape, member.shape, strict=False)))):
            raise InputError(
                f"{name} has another shape in {dump.source} than in {network.name}",
                f"{'x'.join(map(str, member.shape)) or 'a single value'} in {dump.source}, "
                f"{'x'.join(map(str, shape)) or 'a single value'} in {network.name}",
                "Save the outputs in the layout that the ONNX network has, first axis samples.")
        rows, each = rows_of(dump.iterations, name), _each(network, name)
        for total in (samples.total, samples.count):
            if rows and (rows == each * total if each is not None else rows % total == 0):
                self._each[name] = rows // total
                return
        limited = samples.count < samples.total
        apart = len(dump.iterations) != len(samples) and not (limited and len(dump.iterations) > len(samples))
        if each is not None or apart:
            there = f"{rows} rows" if rows is not None else "no rows"
            raise InputError(
                f"{dump.source} is not of these samples",
                f"{name} has {there} in {plural(len(dump.iterations), 'iteration')} there; {samples.source} holds "
                f"{plural(samples.total, 'sample')}, run in {plural(len(samples), 'feed')}",
                "Save the outputs for all samples of --data, in their order.")

    def outputs(self, samples: Samples, index: int) -> dict[str, np.ndarray]:
        """See `Outputs`."""
        number, first = samples.place(index)
        count = samples.rows(index)
        found = {}
        for name, rows in self._rows.items():
            each = self._each.get(name)
            array = rows.iteration(number) if each is None else rows.take(first * each, (first + count) * each)
            with np.errstate(over="ignore"):
                found[name] = np.asarray(array, self._types[name])
        return found

    def close(self) -> None:
        """See `Outputs`."""


class NothingCommonError(InputError):
    """Two sides have no tensor in common."""


def nothing_common(one: str, has: Sequence[str], other: str, wanted: Sequence[str], verb: str = "yields",
                   way: str = "Name the arrays after the network's outputs, or name another file."
                   ) -> NothingCommonError:
    """That two sides have no tensor in common; names both, and what may have been meant.

    Args:
        verb: What the other does with its tensors.
        way: The next step where no names are near each other.
    """
    near = [f"{name} for {match[0]}" for name in has if (match := difflib.get_close_matches(name, wanted, 1, 0.6))]
    return NothingCommonError(f"{one} and {other} have no tensor in common",
                      f"{one} has {first_few(list(has))}; {other} {verb} {first_few(list(wanted))}",
                      f"Call the tensors alike: {first_few(near, 2)}?" if near else way)


def _each(network: Network, name: str) -> int | None:
    """How many rows of a tensor's first axis belong to a sample, by what is declared; None where that tells nothing."""
    shape = network.shape(name)
    leads = [info.shape[0] for info in network.inputs if info.shape]
    if not shape or not leads:
        return None
    if isinstance(shape[0], str):
        return 1 if shape[0] in leads else None
    if not isinstance(shape[0], int) or not isinstance(leads[0], int) or not leads[0] or shape[0] % leads[0]:
        return None
    return shape[0] // leads[0]


def _declared(network: Network, name: str) -> np.dtype:
    """The type of a tensor of the network; FP32 for floats of 16 bits, whose reference is more exact."""
    types = {info.name: info.dtype for info in (*network.outputs, *network.inputs)}
    if name not in types and not network.is_float(name) and (dtype := network.value(name).dtype) is not None:
        return dtype.numpy()
    declared = types.get(name, np.dtype(np.float32))
    return np.dtype(np.float32) if is_float(declared) and declared.itemsize < 4 else declared


class NetworkOutputs:
    """Another network, run as it is written on the same samples, as `Outputs`.

    Args:
        wanted: Tensors that it is asked for, as far as it has them.

    Raises:
        InputError: it cannot be read or run, takes other inputs, or has none of the tensors.
    """

    def __init__(self, path: Path, network: Network, backend: Backend, wanted: Sequence[str]) -> None:
        self.name = path.name
        model, files = read_model(path)
        self.files = (path, *files)
        there = {value.name for node in model.graph for value in node.outputs}
        outputs = [value.name or "" for value in model.graph.outputs]
        common = [name for name in wanted if name in there]
        self.tensors = frozenset(common)
        self.beyond = tuple(name for name in outputs if name not in network.producer)
        if not common:
            raise nothing_common(path.name, outputs, network.name, tensor_outputs(network))
        own = {info.name for info in network.inputs}
        fed = [value.name or "" for value in model.graph.inputs if value.name not in model.graph.initializers]
        if unknown := [name for name in fed if name not in own]:
            near = difflib.get_close_matches(unknown[0], own, 1, 0.3) or sorted(own)
            raise InputError(f"{path.name} takes an input that {network.name} has not: {unknown[0]}",
                             f"{network.name} takes {first_few([info.name for info in network.inputs])}",
                             f"Export both with the same inputs; {near[0]}?")
        self._types = {name: _declared(network, name) for name in common}
        self._model, self._backend = ending_in(model, common), backend
        self._runner: Runner | None = None

    def outputs(self, samples: Samples, index: int) -> dict[str, np.ndarray]:
        """See `Outputs`."""
        if self._runner is None:
            self._runner = fitted(self._backend, self._model, samples, optimize=False)
        types = {info.name: info.dtype for info in self._runner.inputs}
        feed = {name: array.astype(types[name], copy=False) for name, array in samples.feed(index).items()
                if name in types}
        found = self._runner.run(feed, sorted(self.tensors))
        with np.errstate(over="ignore"):
            return {name: comparable(array).astype(self._types[name], copy=False) for name, array in found.items()}

    def close(self) -> None:
        """See `Outputs`."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def open_outputs(spec: str, network: Network, samples: Callable[[], Samples], backend: Callable[[], Backend],
                 judged: Sequence[Judged]) -> Outputs:
    """Opens what was named: a network, or a dump of tensors.

    Raises:
        InputError: see `DumpedOutputs` and `NetworkOutputs`.
    """
    if is_network(spec):
        wanted = dict.fromkeys((*tensor_outputs(network), *(one.tensor for one in judged)))
        return NetworkOutputs(Path(spec), network, backend(), tuple(wanted))
    return DumpedOutputs(open_dump(spec), network, samples())


def judged_against(judged: Sequence[Judged], outputs: Outputs, network: Network, named: bool) -> tuple[Judged, ...]:
    """The judged outputs that a reference has.

    Args:
        named: They were named with --judge, so that none may be missing.

    Raises:
        InputError: one that was named is missing, or all are.
    """
    found = tuple(one for one in judged if one.tensor in outputs.tensors)
    missing = [one.tensor for one in judged if one.tensor not in outputs.tensors]
    if missing and (named or not found):
        raise nothing_common(outputs.name, sorted(outputs.tensors) + list(outputs.beyond), network.name, missing)
    return found


def named(outputs: Outputs, network: Network, scored: Sequence[str], judged: Sequence[Judged]) -> Named:
    """What is told of a reference.

    Args:
        scored: What the metric is given.
        judged: What would be judged without a reference.
    """
    unjudged = dict.fromkeys(one.tensor for one in judged if one.tensor not in outputs.tensors)
    here = tuple(name for name in tensor_outputs(network) if name not in outputs.tensors)
    return Named(outputs.name, outputs.beyond, here, set(scored) <= outputs.tensors, tuple(unjudged))


def reference_notes(reference: Named, network: str, scored: bool) -> list[str]:
    """What to know of a reference, one sentence each.

    Args:
        network: The network's name.
        scored: Whether there is a metric.
    """
    notes = [f"Only in {where}: {first_few(names)}." for where, names in (
        (reference.name, reference.only_there), (network, reference.only_here)) if names]
    if reference.unjudged:
        notes.append(f"{reference.name} lacks what would be judged: {first_few(reference.unjudged)}. Save these "
                     "tensors too, since what comes behind them (a selection, integers) says little.")
    if scored and not reference.metric:
        notes.append(f"{reference.name} lacks outputs that the metric is given: its base is FP32 of {network}.")
    return notes
