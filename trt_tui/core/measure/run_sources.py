"""The outputs of runs, be they simulated, executed, built, dumped or of another network, and their reduction to one
accuracy over all samples.

Some runs are read from files: a dump of tensors, such as a framework's outputs, and another network.

Each can be the reference in place of the FP32 run of the network. Both yield tensors by the names of the network.

Tensors of feeds are cached in memory up to a size limit, then in a temporary file or read from the data again.
"""

from __future__ import annotations

import contextlib
import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.batches import SampleName, is_castable, is_float
from trt_tui.core.data.samples import Samples
from trt_tui.core.data.tensor_files import ArraySpool, Dump, DumpTensor, StoredArray, count_tensor_rows, open_dump
from trt_tui.core.lowering.gated.error_sums import SAMPLE_SUM_COLUMNS
from trt_tui.core.measure import error_metrics
from trt_tui.core.measure.error_metrics import (
    AccuracyIntervals,
    BootstrapSampler,
    ErrorMetrics,
    ErrorSums,
    finite_or_none,
    flatten_each_sample,
)
from trt_tui.core.measure.judged_outputs import (
    INTEGER_KIND,
    JudgedOutput,
    find_unmasked_elements,
    list_tensor_outputs,
    take_judged_slice,
)
from trt_tui.core.measure.results import Accuracy, Caveat, OutputErrors, Run, RunKind
from trt_tui.core.measure.simulation_limits import FailedRunOutputs
from trt_tui.core.measure.user_metric import MetricScorer
from trt_tui.core.network.layer_tree import tensor_shape_text
from trt_tui.core.network.model_editing import extract_subgraph_of_outputs
from trt_tui.core.network.model_file import read_model
from trt_tui.core.network.network import Network
from trt_tui.core.runner import Backend, Runner, Waitable
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.formatting import counted_noun_text, name_list_text

TENSOR_CACHE_BYTES = 256 << 20
"""The maximum size of tensors in memory. Further tensors go to a temporary file."""
FEED_CACHE_BYTES = 1 << 30
"""The maximum size of feeds that are kept for a device. Further feeds are read from the data each time."""


class TensorCache:
    """A cache of tensors by feed, in memory up to a maximum size and then in a temporary file.

    Tensors in memory are the same arrays each time. A device keeps the arrays that it received before.

    Args:
        memory_bytes: The maximum size in memory; `TENSOR_CACHE_BYTES` by default.
        uses_file: False to keep no tensors beyond the maximum size.
    """

    def __init__(self, memory_bytes: int | None = None, uses_file: bool = True) -> None:
        self._max_bytes, self._uses_file = TENSOR_CACHE_BYTES if memory_bytes is None else memory_bytes, uses_file
        self.clear()

    def clear(self) -> None:
        self._arrays: dict[int, dict[str, np.ndarray]] = {}
        self._spooled: dict[int, dict[str, StoredArray]] = {}
        self._spool: ArraySpool | None = None
        self._memory_bytes = 0

    def __contains__(self, feed_index: int) -> bool:
        return feed_index in self._arrays or feed_index in self._spooled

    def put_tensors(self, feed_index: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores the tensors of a feed.

        Raises:
            InputError: the disk has too little space for them.
        """
        size = sum(array.nbytes for array in arrays.values())
        if self._memory_bytes + size <= self._max_bytes:
            self._arrays[feed_index] = dict(arrays)
            self._memory_bytes += size
        elif self._uses_file:
            spool = self._spool = self._spool or ArraySpool()
            self._spooled[feed_index] = {name: spool.append_array(array) for name, array in arrays.items()}

    def get_tensors(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns the stored tensors of a feed."""
        if feed_index in self._arrays:
            return self._arrays[feed_index]
        return {name: stored.load() for name, stored in self._spooled[feed_index].items()}

    def get_or_load(self, feed_index: int, load: Callable[[int], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Returns the tensors of a feed, which a function loads and this cache stores if they are not stored yet."""
        if feed_index in self:
            return self.get_tensors(feed_index)
        arrays = load(feed_index)
        self.put_tensors(feed_index, arrays)
        return arrays


class RunSource(ABC):
    """The outputs of a run.

    Args:
        run: The run.
        available_tensors: The names of the tensors of the network that it yields.
        extra_tensors: The names of its tensors that the network does not have.
    """

    def __init__(self, run: Run, available_tensors: Collection[str], extra_tensors: Sequence[str] = ()) -> None:
        self.run = run
        self.available_tensors = frozenset(available_tensors)
        self.extra_tensors = tuple(extra_tensors)

    @abstractmethod
    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        """Adds the outputs of feeds to a reducer. Yields None after each feed, and each `Waitable` in between.

        Raises:
            TrtTuiError: the outputs cannot be read or computed.
        """

    def find_caveats(self, feed_indices: Sequence[int]) -> Sequence[Caveat]:
        """Returns the caveats of this run in addition to those of its outputs; called once all feeds are measured."""
        return ()

    def close(self) -> None:  # noqa: B027 (most sources hold nothing)
        """Frees the resources of the source."""


class IterableRunSource(RunSource):
    """A run that yields its outputs without waiting."""

    @abstractmethod
    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the available tensors of each feed, in the types that the network declares; raises as `measure`."""

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Waitable | None]:
        for index, outputs in zip(feed_indices, self.iterate_outputs(feed_indices), strict=True):
            reducer.add_feed_outputs(index, outputs)
            yield None


class IndexedRunSource(IterableRunSource):
    """A run whose feeds are read in any order, so that it can be the reference of another run.

    Args:
        get_outputs: A function that returns the available tensors of a feed; it raises as `measure`.
    """

    def __init__(
        self,
        run: Run,
        available_tensors: Collection[str],
        get_outputs: Callable[[int], Mapping[str, np.ndarray]],
        extra_tensors: Sequence[str] = (),
    ) -> None:
        super().__init__(run, available_tensors, extra_tensors)
        self.get_outputs = get_outputs

    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        return map(self.get_outputs, feed_indices)


_MIN_REPRODUCED_SQNR_DB = {"float16": 75.0, "bfloat16": 65.0}
"""The minimum SQNR of outputs that differ from those of the reference by FP32 rounding alone, by the type of the
outputs; 90 dB for other types.

The order of additions, which optimizations of ONNX Runtime change, costs 101 dB in a ResNet-50 and 121 in a ViT-S.
Weights rounded to FP16 cost 60 to 80 dB. A difference of 90 dB before outputs are rounded to 16 bits changes the last
bit of some of them."""


@dataclass(frozen=True)
class ReferenceInfo:
    """The name of the reference that the user chose, and the tensors that it or the network lacks.

    Attributes:
        name: The name beside measured values.
        missing_in_network: Tensors of the reference that the network lacks.
        missing_in_reference: Outputs of the network that the reference lacks.
        has_metric_outputs: True if the user's metric is computed from the reference, False if from FP32 of the network.
        missing_judged_tensors: Tensors that would be judged if the reference had them.
    """

    name: str
    missing_in_network: tuple[str, ...] = ()
    missing_in_reference: tuple[str, ...] = ()
    has_metric_outputs: bool = True
    missing_judged_tensors: tuple[str, ...] = ()


def is_network_file(reference_spec: str) -> bool:
    """Returns True if the text names a network as the reference, and False if it names a dump of tensors."""
    return Path(reference_spec).suffix.lower() == ".onnx"


def open_dump_run(
    run: Run, dump: Dump, network: Network, samples: Samples, *, uses_inputs: bool = False
) -> IndexedRunSource:
    """Opens a dump of the network's tensors, which is read feed by feed, as the samples are.

    Args:
        run: The run; a name of "" stands for the name of the dump.
        samples: All samples of the data, in their order. The dump was made of these samples.
        uses_inputs: Read the inputs of the network from the dump, and not the tensors that it computes.

    Raises:
        InputError: the dump has none of the network's tensors, other shapes, or another number of samples.
    """
    if samples.is_random:
        raise InputError(
            f"{dump.source} needs the samples that it was made from",
            "the inputs here are random",
            "Name them with --data.",
        )
    fed = {info.name for info in network.inputs}
    names = [name for name in dump.tensor_names if name in (fed if uses_inputs else network.producer)]
    if not names:
        raise no_common_tensors_error(dump.source, dump.tensor_names, network.name, list_tensor_outputs(network))
    tensors = {
        name: (
            DumpTensor(dump, name),
            _find_reference_dtype(network, name),
            _count_dumped_rows_per_sample(dump, network, samples, name),
        )
        for name in names
    }

    def read_feed_outputs(feed_index: int) -> Mapping[str, np.ndarray]:
        iteration, first = samples.feed_position(feed_index)
        stop = first + samples.count_samples_of_feed(feed_index)
        arrays = {
            name: tensor.read_iteration(iteration)
            if rows_per_sample is None
            else tensor.read_rows(first * rows_per_sample, stop * rows_per_sample)
            for name, (tensor, _, rows_per_sample) in tensors.items()
        }
        with np.errstate(over="ignore"):
            return {name: np.asarray(array, tensors[name][1]) for name, array in arrays.items()}

    return IndexedRunSource(
        replace(run, name=run.name or dump.source, files=dump.files),
        names,
        read_feed_outputs,
        [
            name
            for name in dump.tensor_names
            if name not in network.producer and name not in fed and name not in samples.label_names
        ],
    )


def _count_dumped_rows_per_sample(dump: Dump, network: Network, samples: Samples, tensor: str) -> int | None:
    """Returns the number of rows of a dumped tensor that belong to one sample; None if iterations are read as feeds.

    Raises:
        InputError: type or shape do not fit the network, or the rows do not fit the samples.
    """
    member, dtype = dump.iterations[0][tensor], _find_reference_dtype(network, tensor)
    if not is_castable(member.dtype, dtype):
        raise InputError(
            f"{tensor} is {member.dtype} in {dump.source}",
            f"in {network.name} it is {dtype}",
            "Save the framework's values of that tensor.",
        )
    check_dump_shape(dump, network, tensor)
    rows, rows_per_sample = count_tensor_rows(dump.iterations, tensor), _find_rows_per_sample(network, tensor)
    for total in (samples.total_sample_count, samples.count):
        if rows and (rows == rows_per_sample * total if rows_per_sample is not None else rows % total == 0):
            return rows // total
    limited = samples.count < samples.total_sample_count
    apart = len(dump.iterations) != len(samples) and not (limited and len(dump.iterations) > len(samples))
    if rows_per_sample is not None or apart:
        rows_text = counted_noun_text(rows, "row") if rows is not None else "no rows"
        raise InputError(
            f"{dump.source} does not belong to these samples",
            f"{tensor} has "
            f"{rows_text} in {counted_noun_text(len(dump.iterations), 'iteration')} there; {samples.source} holds "
            f"{counted_noun_text(samples.total_sample_count, 'sample')}, run in "
            f"{counted_noun_text(len(samples), 'feed')}",
            "Save the outputs for all samples of --data, in their order.",
        )
    return None


def check_dump_shape(dump: Dump, network: Network, tensor: str) -> None:
    """Checks the shape of a dumped tensor against its shape in the network, except for the first axis.

    Raises:
        InputError: the shapes differ.
    """
    dumped_shape, shape = dump.iterations[0][tensor].shape, network.shape(tensor)
    if shape is not None and (
        len(shape) != len(dumped_shape)
        or any(
            isinstance(declared_size, int) and axis and size != declared_size
            for axis, (declared_size, size) in enumerate(zip(shape, dumped_shape, strict=False))
        )
    ):
        raise InputError(
            f"{tensor} has another shape in {dump.source} than in {network.name}",
            f"{tensor_shape_text(dumped_shape)} in {dump.source}, {tensor_shape_text(shape)} in {network.name}",
            "Name the network that the tensor is from, or save the tensor in the layout of the network, first axis "
            "samples.",
        )


def no_common_tensors_error(
    first_name: str,
    first_tensors: Sequence[str],
    second_name: str,
    second_tensors: Sequence[str],
    verb: str = "yields",
    next_step: str = "Name the arrays after the network's outputs, or name another file.",
) -> InputError:
    """Returns the error that two dumps or networks have no tensor in common, with the tensors of both and similar
    names.

    Args:
        verb: The verb between the second side and its tensors.
        next_step: The next step if no names are similar.
    """
    near = [
        f"{name} for {match[0]}"
        for name in first_tensors
        if (match := difflib.get_close_matches(name, second_tensors, 1, 0.6))
    ]
    return InputError(
        f"{first_name} and {second_name} have no tensor in common",
        f"{first_name} has "
        f"{name_list_text(list(first_tensors))}; {second_name} {verb} {name_list_text(list(second_tensors))}",
        f"Give the tensors the same names: {name_list_text(near, 2)}?" if near else next_step,
    )


def _find_rows_per_sample(network: Network, tensor: str) -> int | None:
    """Returns the number of rows of a tensor that belong to one sample, by the declared shapes; None if unknown."""
    shape = network.shape(tensor)
    leads = [info.shape[0] for info in network.inputs if info.shape]
    if not shape or not leads:
        return None
    if isinstance(shape[0], str):
        return 1 if shape[0] in leads else None
    if not isinstance(shape[0], int) or not isinstance(leads[0], int) or not leads[0] or shape[0] % leads[0]:
        return None
    return shape[0] // leads[0]


def _find_reference_dtype(network: Network, tensor: str) -> np.dtype:
    """Returns the type of a tensor in the network. For 16-bit floats it is FP32, because the reference is more precise."""
    types = {info.name: info.dtype for info in (*network.outputs, *network.inputs)}
    if tensor not in types and not network.is_fp32(tensor) and (dtype := network.ir_value(tensor).dtype) is not None:
        return dtype.numpy()
    declared = types.get(tensor, np.dtype(np.float32))
    return np.dtype(np.float32) if is_float(declared) and declared.itemsize < 4 else declared


class NetworkRun(IndexedRunSource):
    """Another network, executed as it is written.

    Args:
        run: The run; a name of "" stands for that of the file.
        requested_tensors: The tensors to yield, as far as the other network has them.

    Attributes:
        name_mismatch: The error that the networks have no tensor in common, if the first one is quantized. The outputs
            are then compared in their order, which holds only for the network that the first one was made from.

    Raises:
        InputError: the file cannot be read or executed, has other inputs, or has none of the tensors.
    """

    def __init__(
        self, run: Run, network: Network, samples: Samples, backend: Backend, requested_tensors: Sequence[str]
    ) -> None:
        path = Path(run.file_path)
        model, files = read_model(path)
        model_tensors = {value.name for node in model.graph for value in node.outputs}
        outputs = [value.name or "" for value in model.graph.outputs]
        common = [name for name in requested_tensors if name in model_tensors]
        self.name_mismatch: InputError | None = None
        if not common:
            self.name_mismatch = no_common_tensors_error(path.name, outputs, network.name, list_tensor_outputs(network))
            if network.source_model is None or len(outputs) != len(network.outputs):
                raise self.name_mismatch
            outputs = [info.name for info in network.outputs]
            for value, name in zip(model.graph.outputs, outputs, strict=True):
                value.name = name
            common = [name for name in requested_tensors if name in outputs]
        super().__init__(
            replace(run, name=run.name or path.name, files=(path, *files)),
            common,
            self._execute_feed,
            [name for name in outputs if name not in network.producer],
        )
        own = {info.name for info in network.inputs}
        fed = [value.name or "" for value in model.graph.inputs if value.name not in model.graph.initializers]
        if unknown := [name for name in fed if name not in own]:
            near = difflib.get_close_matches(unknown[0], own, 1, 0.3) or sorted(own)
            raise InputError(
                f"{path.name} has an input that {network.name} lacks: {unknown[0]}",
                f"{network.name} takes {name_list_text([info.name for info in network.inputs])}",
                f"Export both with the same inputs; {near[0]}?",
            )
        self._tensor_types = {name: _find_reference_dtype(network, name) for name in common}
        self._model, self._backend, self._samples = extract_subgraph_of_outputs(model, common), backend, samples
        self._runner: Runner | None = None

    def _execute_feed(self, feed_index: int) -> Mapping[str, np.ndarray]:
        if self._runner is None:
            self._runner = AdaptiveRunner(self._backend, self._model, self._samples, optimize=False)
        types = {info.name: info.dtype for info in self._runner.inputs}
        feed = self._samples.read_feed(feed_index)
        feed = {name: array.astype(types[name], copy=False) for name, array in feed.items() if name in types}
        arrays = self._runner.run(feed, sorted(self.available_tensors))
        with np.errstate(over="ignore"):
            return {
                name: convert_to_comparable_array(array).astype(self._tensor_types[name], copy=False)
                for name, array in arrays.items()
            }

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def open_file_run(
    run: Run, network: Network, samples: Samples, backend: Backend, judged_outputs: Sequence[JudgedOutput]
) -> IndexedRunSource:
    """Opens a run of another network, or of a dump of tensors.

    Raises:
        InputError: see `open_dump_run` and `NetworkRun`.
    """
    if run.kind is RunKind.NETWORK_FILE:
        requested_tensors = dict.fromkeys(
            (*list_tensor_outputs(network), *(judged_output.tensor for judged_output in judged_outputs))
        )
        return NetworkRun(run, network, samples, backend, tuple(requested_tensors))
    return open_dump_run(run, open_dump(run.file_path), network, samples)


def reproduction_failure_reason(accuracy: Accuracy, network: Network) -> str:
    """Returns the reason why a network with the weights of the reference does not reproduce it, as a clause.

    The result is "" if all outputs are those of the reference up to FP32 rounding.

    Args:
        accuracy: The accuracy of the network against the reference, rounded to the types of its outputs.
    """
    min_sqnr_db = min(_MIN_REPRODUCED_SQNR_DB.get(info.dtype.name, 90.0) for info in network.outputs)
    changed_layers = network.source_model.changed_layers if network.source_model is not None else ()
    for name, output in accuracy.outputs.items():
        errors = output.errors
        if errors.mismatch or errors.mismatch is None and errors.comparable_sqnr_db < min_sqnr_db:
            error_text = (
                f"{errors.mismatch:.1%} of its elements"
                if errors.mismatch
                else f"{errors.sqnr_text('')} dB"
                if errors.sqnr_db is not None
                else errors.sqnr_text("")
            )
            weights_text = (
                (f"it lacks the weights of {name_list_text(changed_layers, max_count=2)}, and with the others")
                if changed_layers
                else "with its weights"
            )
            return f"{weights_text} {name} differs ({error_text})"
    return ""


def select_outputs_in_reference(
    judged_outputs: Sequence[JudgedOutput], reference: IndexedRunSource, network: Network, is_named_by_user: bool
) -> tuple[JudgedOutput, ...]:
    """Returns the judged outputs that a reference contains too.

    Args:
        is_named_by_user: True if the outputs were named with --judge. None of them may then be missing.

    Raises:
        InputError: a named output is missing, or all outputs are.
    """
    available = tuple(output for output in judged_outputs if output.tensor in reference.available_tensors)
    missing = [output.tensor for output in judged_outputs if output.tensor not in reference.available_tensors]
    if missing and (is_named_by_user or not available):
        raise no_common_tensors_error(
            reference.run.name, [*sorted(reference.available_tensors), *reference.extra_tensors], network.name, missing
        )
    return available


def collect_reference_info(
    reference: IndexedRunSource, network: Network, metric_tensors: Sequence[str], judged_outputs: Sequence[JudgedOutput]
) -> ReferenceInfo:
    """Returns the description of a reference: its name, and the tensors that it or the network lacks.

    Args:
        metric_tensors: The tensors that the metric receives.
        judged_outputs: The outputs that would be judged without a reference.
    """
    available = reference.available_tensors
    unjudged = dict.fromkeys(output.tensor for output in judged_outputs if output.tensor not in available)
    missing_tensors = tuple(name for name in list_tensor_outputs(network) if name not in available)
    return ReferenceInfo(
        reference.run.name, reference.extra_tensors, missing_tensors, set(metric_tensors) <= available, tuple(unjudged)
    )


def reference_notes(reference_info: ReferenceInfo, network_name: str, has_metric: bool) -> list[str]:
    """Returns notes on a reference, one sentence each: tensors that it or the network lacks, and the baseline of the
    metric.

    Args:
        has_metric: True if there is a metric.
    """
    notes = [
        f"Only in {location}: {name_list_text(names)}."
        for location, names in (
            (reference_info.name, reference_info.missing_in_network),
            (network_name, reference_info.missing_in_reference),
        )
        if names
    ]
    if reference_info.missing_judged_tensors:
        notes.append(
            f"{reference_info.name} lacks the tensors that would be judged: "
            f"{name_list_text(reference_info.missing_judged_tensors)}. Save these "
            "tensors too, since the outputs after them (a selection, integers) say little."
        )
    if has_metric and not reference_info.has_metric_outputs:
        notes.append(
            f"{reference_info.name} lacks outputs that the metric needs: its baseline is FP32 of {network_name}."
        )
    return notes


def convert_to_comparable_array(output: Any) -> np.ndarray:
    """Returns an output of ONNX Runtime as an array whose elements have a fixed size.

    ONNX Runtime returns strings as an object array, and a single string as a `str`.
    """
    if isinstance(output, np.ndarray) and output.dtype.kind != "O":
        return output
    return np.asarray(output, np.str_)


class AccuracyReducer:
    """The sums from which the accuracy of one run is computed, collected feed by feed.

    Args:
        samples: The judged samples.
        feed_indices: The indices of the feeds that are judged. Feeds that are added besides count only if they contain
            NaN or Inf.
        compared_feeds: The feeds among them whose errors are also computed by themselves; () for none.
        judged_outputs: The outputs at which errors are computed.
        get_reference: Returns the judged tensors of the reference for a feed.
        classifier_output: The judged output at which top-1 agreement is counted; None if there is none.
        metric_scorer: The user's metric; None without a metric.

    Attributes:
        bootstrap_sampler: The sums of each sample, from which confidence intervals follow.
    """

    def __init__(
        self,
        samples: Samples,
        feed_indices: Sequence[int],
        judged_outputs: Sequence[JudgedOutput],
        get_reference: Callable[[int], Mapping[str, np.ndarray]],
        *,
        compared_feeds: Sequence[int] = (),
        classifier_output: JudgedOutput | None = None,
        metric_scorer: MetricScorer | None = None,
    ) -> None:
        self._samples = samples
        self._get_reference = get_reference
        self._classifier_output = classifier_output
        self._metric_scorer = metric_scorer
        self.bootstrap_sampler = BootstrapSampler()
        self._failures: list[Caveat] = []
        self._judged_feeds, self._compared_feeds = frozenset(feed_indices), frozenset(compared_feeds)
        self.judged_outputs = tuple(judged_outputs)
        self.error_sums, self._compared_sums = (
            {judged_output.name: ErrorSums() for judged_output in judged_outputs if judged_output.kind != INTEGER_KIND}
            for _ in range(2)
        )
        self.worst_samples: dict[str, tuple[SampleName, float]] = {}
        self.metric_outputs: dict[int, Mapping[str, np.ndarray]] = {}
        self.added_samples = 0
        self.total_samples = sum(samples.count_samples_of_feed(index) for index in feed_indices)

    def add_feed_outputs(
        self,
        feed_index: int,
        outputs: Mapping[str, np.ndarray],
        precomputed_sums: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Adds the outputs of a run for one feed to the sums from which its accuracy is computed.

        Args:
            precomputed_sums: The sums that the graph computed itself, by judged output: `SAMPLE_SUM_COLUMNS`, Σref² and
                the largest |ref| of each sample, all finite. The tensors of these outputs are not read.

        Raises:
            TrtTuiError: a judged float tensor has another shape than the reference.
        """
        rows = self._samples.count_samples_of_feed(feed_index)
        reference = self._get_reference(feed_index)
        if isinstance(outputs, FailedRunOutputs):
            self._failures.append(outputs.caveat)
        is_judged = feed_index in self._judged_feeds
        for judged_output in self.judged_outputs:
            if not is_judged and (judged_output.kind == INTEGER_KIND or judged_output.tensor not in outputs):
                continue
            expected = take_judged_slice(reference[judged_output.tensor], judged_output)
            if precomputed_sums and judged_output.name in precomputed_sums:
                columns = precomputed_sums[judged_output.name].T
                count = np.full(columns.shape[1], expected.size / columns.shape[1])
                self._add_error_sums(
                    feed_index,
                    judged_output.name,
                    {"count": count, **dict(zip((*SAMPLE_SUM_COLUMNS, "ref2", "ref_max"), columns, strict=True))},
                    rows,
                )
                continue
            got = take_judged_slice(outputs[judged_output.tensor], judged_output)
            if judged_output.kind == INTEGER_KIND:
                self.bootstrap_sampler.add_integer_output(judged_output.name, expected, got, rows)
                continue
            if expected.shape != got.shape and not is_judged:
                continue
            if expected.shape != got.shape:
                raise TrtTuiError(
                    f"{judged_output.name} changed its shape",
                    f"{expected.shape} in the reference, {got.shape} here",
                    "Judge a tensor before the operator that selects values, with --judge.",
                )
            counted = find_unmasked_elements(
                judged_output, self._samples, feed_index, reference[judged_output.tensor], outputs[judged_output.tensor]
            )
            if counted is None:
                sums = error_metrics.compute_error_sums_by_name(expected, got, rows)
            else:
                sums = error_metrics.compute_error_sums_by_name(
                    np.where(counted, expected, 0), np.where(counted, got, 0), rows
                )
                sums["count"] = flatten_each_sample(counted, rows).sum(1)
            self._add_error_sums(feed_index, judged_output.name, sums, rows)
            if judged_output is self._classifier_output and is_judged:
                top, now = expected.reshape(rows, -1), got.reshape(rows, -1)
                has_new_nan = (np.isnan(now) & ~np.isnan(top)).any(1)  # argmax takes NaN for the largest score
                agrees = (top.argmax(1) == now.argmax(1)) & ~has_new_nan
                self.bootstrap_sampler.agreements.append(agrees.astype(np.float64)[:, None])
        if self._metric_scorer is not None and is_judged:
            self.metric_outputs[feed_index] = {name: outputs[name] for name in self._metric_scorer.output_names}
        self.added_samples += rows * is_judged

    def _add_error_sums(
        self,
        feed_index: int,
        output_name: str,
        sums: Mapping[str, np.ndarray],
        sample_count: int,
    ) -> None:
        """Adds the error sums of a judged output over one feed, and updates its worst sample.

        Of a feed that is not judged only NaN and Inf count.

        Args:
            sums: The sums of each row, by name; see `error_metrics.compute_error_sums_by_name`.
        """
        pooled = {name: values.max() if name.endswith("_max") else values.sum() for name, values in sums.items()}
        is_judged = feed_index in self._judged_feeds
        if not is_judged:
            pooled = {"nan": pooled.get("nan", 0), "inf": pooled.get("inf", 0), "diff2": math.nan}
            if not pooled["nan"] + pooled["inf"]:
                return
        self.error_sums[output_name].merge_sums(pooled)
        if feed_index in self._compared_feeds:
            self._compared_sums[output_name].merge_sums(pooled)
        if len(sums["count"]) != sample_count:
            sums = {name: sums[name].sum(keepdims=True) for name in error_metrics.SAMPLE_SUMS}
        if is_judged:
            self.bootstrap_sampler.add_float_output_sums(output_name, sums)
        if len(sums["count"]) == sample_count:
            sqnrs_db = error_metrics.compute_sqnr_db_by_sample(sums)
            lowest = int(np.argmin(np.where(np.isnan(sqnrs_db), np.inf, sqnrs_db)))
            if sqnrs_db[lowest] < self.worst_samples.get(output_name, (None, math.inf))[1]:
                self.worst_samples[output_name] = (
                    self._samples.sample_name(feed_index, lowest),
                    float(sqnrs_db[lowest]),
                )

    def compute_accuracy(self, with_metric: bool = True) -> Accuracy:
        """Returns the accuracy over all feeds that were added so far.

        Raises:
            InputError: a judged slice contains no element of any sample, or the metric fails.
        """
        outputs = {}
        for judged_output in self.judged_outputs:
            if judged_output.kind == INTEGER_KIND:
                differ, count = self.bootstrap_sampler.count_mismatches(judged_output.name)
                outputs[judged_output.name] = OutputErrors(
                    ErrorMetrics(mismatch=differ / (count or 1), exact=differ == 0)
                )
                continue
            if self.added_samples == self.total_samples and not self.error_sums[judged_output.name]["count"]:
                raise InputError(f"{judged_output.name} selects no values of the output", "", "Judge another slice.")
            name, worst = self.worst_samples.get(judged_output.name, (None, math.inf))
            outputs[judged_output.name] = OutputErrors(
                self.error_sums[judged_output.name].compute_error_metrics(),
                name,
                finite_or_none(worst),
            )
        metric, reference_metric, compared_metric = {}, {}, {}
        if self._metric_scorer is not None and with_metric and self.metric_outputs and not self._failures:
            # On some of the feeds a metric may fail, for example if all their samples are of one class. It has no value
            # then. On all samples its error is raised.
            ignored_errors = [InputError] if self.added_samples < self.total_samples else []
            with contextlib.suppress(*ignored_errors):
                reference_metric = self._metric_scorer.compute_reference_metric([*self.metric_outputs])
                metric = self._compute_metric(self._metric_scorer, self.metric_outputs)
                compared = {
                    feed: outputs for feed, outputs in self.metric_outputs.items() if feed in self._compared_feeds
                }
                if compared:
                    compared_metric = self._compute_metric(self._metric_scorer, compared)
        agreements = self.bootstrap_sampler.agreements
        noise = [sums.noise_to_signal_ratio for sums in self.error_sums.values()] or [
            judged_output.errors.mismatch or 0.0 for judged_output in outputs.values()
        ]
        spread = self.bootstrap_sampler.compute_intervals() if self.added_samples == self.total_samples else None
        compared_outputs = (
            {name: OutputErrors(sums.compute_error_metrics()) for name, sums in self._compared_sums.items()}
            if self._compared_feeds
            else {}
        )
        return Accuracy(
            outputs,
            metric,
            float(np.concatenate(agreements).mean()) if agreements else None,
            self.added_samples,
            self.total_samples,
            sum(noise) if noise else None,
            spread,
            caveats=tuple(self._failures[:1]),
            reference_metric=reference_metric,
            compared_outputs=compared_outputs,
            compared_metric=compared_metric,
        )

    def resample_metric_interval(self, accuracy: Accuracy) -> Iterator[Accuracy]:
        """Yields the accuracy of all feeds after each bootstrap draw of the metric, and last with the interval of the
        metric.

        Yields nothing without a metric, or if the metric failed.
        """
        if self._metric_scorer is None or not accuracy.metric:
            return
        for spread in self._metric_scorer.measure_metric_intervals(
            [*self.metric_outputs.values()], [*self.metric_outputs], accuracy.intervals or AccuracyIntervals()
        ):
            yield replace(accuracy, intervals=spread)

    @staticmethod
    def _compute_metric(
        metric_scorer: MetricScorer, outputs_by_feed: Mapping[int, Mapping[str, np.ndarray]]
    ) -> dict[str, float]:
        try:
            return metric_scorer.compute_metric([*outputs_by_feed.values()], [*outputs_by_feed])
        except InputError:
            # A metric is not called on NaN and Inf: the outputs already show that the run is broken.
            if all(
                np.isfinite(array).all()
                for arrays in outputs_by_feed.values()
                for array in arrays.values()
                if array.dtype.kind != "U"
            ):
                raise
            return {}
