"""Stages of a network on its way to production, each compared with the reference and with the previous stage.

The inputs that production dumped are compared with the inputs used here, with explanations of differences.

The results have a stability: the spread between several engines of one network, and between two batch sizes. Errors
inside an engine are those of the results of its fusion groups against FP32 of the network.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.tensor_files import DUMP_FORMATS, DUMP_SUFFIXES, PICKLE_SUFFIXES, split_dump_spec
from trt_tui.core.engines.inspector import KernelResult, decode_kernel_result
from trt_tui.core.lowering.gated.gated_graph import expand_mask_to_axes
from trt_tui.core.measure.error_metrics import (
    ErrorMetrics,
    ErrorSums,
    compute_error_sums_by_name,
    compute_sqnr_db_by_sample,
    finite_or_none,
    flatten_each_sample,
)
from trt_tui.core.measure.judged_outputs import find_common_mask_name, read_mask, take_judged_slice
from trt_tui.core.measure.results import Accuracy, EngineResult, ResultKind, Run, RunKind, RunResult
from trt_tui.core.measure.run_sources import IndexedRunSource
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import Target, judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_editing import extract_subgraph_of_outputs
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.formatting import (
    RUN_TITLES,
    add_decibel_unit,
    counted_noun_text,
    decibels_text,
    name_list_text,
    number_text,
)

ReadGroupResults = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""A function that reads the result of each group in an engine, from a feed and the FP32 tensors for that feed. A result
is one array, or several possible readings."""


def read_kernel_outputs(
    runner: EngineRunner,
    kernel_results: Mapping[str, KernelResult],
    feed: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> Mapping[str, Sequence[np.ndarray]]:
    """Reads group results from the debug tensors between the kernels of an engine as built."""
    tensors = runner.read_debug_tensors(
        feed, {output.tensor for end in kernel_results.values() for output in end.possible_outputs}
    )
    return {
        group: decode_kernel_result(tensors, end, reference[end.tensor].shape) for group, end in kernel_results.items()
    }


def read_marked_outputs(
    runner: Runner,
    tensors_by_group: Mapping[str, str],
    feed: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
) -> Mapping[str, Sequence[np.ndarray]]:
    """Reads group results from a marked engine, which has every group's result as an output."""
    outputs = runner.run(feed, list(tensors_by_group.values()))
    return {
        group: [outputs[tensor].astype(np.float32, copy=False).reshape(reference[tensor].shape)]
        for group, tensor in tensors_by_group.items()
        if outputs[tensor].size == reference[tensor].size
    }


def measure_engine_errors(
    analysis: Analysis,
    config: PrecisionConfig,
    read_group_results: ReadGroupResults,
    tensors_by_group: Mapping[str, str],
    feed_indices: Sequence[int],
) -> Iterator[dict[str, ErrorMetrics]]:
    """Yields the accumulated errors inside an engine by group name after each feed, over all feeds so far.

    A group is absent if its result could not be read. If a result can be read in several ways, the reading that is
    nearest to FP32 on the first feed is used for all feeds. If the judged outputs have one mask, masked elements do not
    count at the tensors that have the axes of the mask.

    Args:
        config: The config of the engine. Where its moves divide channels, results are multiplied by the divisors first.
        tensors_by_group: The tensor of the network at which each group is compared.
    """
    network, samples = analysis.network, analysis.samples
    divisors = config.find_divisors(network)
    mask = find_common_mask_name(analysis.judged_outputs)
    sums: dict[str, ErrorSums] = {}
    chosen: dict[str, int] = {}
    tensor_names = list(dict.fromkeys(tensors_by_group.values()))
    if not tensor_names:
        return
    with AdaptiveRunner(
        analysis.backend,
        extract_subgraph_of_outputs(network.model, tensor_names),
        samples,
        low_memory=True,
        few_executions=True,
    ) as runner:
        for index in feed_indices:
            feed = samples.read_full_feed(index)
            reference = runner.run(feed, tensor_names)
            for group, arrays in read_group_results(feed, reference).items():
                tensor = tensors_by_group[group]
                counts = _find_unmasked_elements(analysis, mask, tensor, index, reference[tensor].shape)
                reading_sums = [ErrorSums() for _ in arrays]
                for array_sums, array in zip(reading_sums, arrays, strict=True):
                    pair = reference[tensor], array * divisors.get(tensor, np.float32(1))
                    array_sums.add_tensor_pair(*(side if counts is None else side[counts] for side in pair))
                if not reading_sums:
                    continue
                if group not in chosen:
                    chosen[group] = reading_sums.index(min(reading_sums, key=lambda item: item.noise_to_signal_ratio))
                if chosen[group] < len(reading_sums):
                    sums.setdefault(group, ErrorSums()).merge_sums(reading_sums[chosen[group]])
            yield {group: group_sums.compute_error_metrics() for group, group_sums in sums.items()}


def _find_unmasked_elements(
    analysis: Analysis, mask_name: str, tensor: str, feed_index: int, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Returns a bool array that is True for the compared elements of a tensor; None if all elements are compared."""
    axes = analysis.mask_axes_by_tensor.get(tensor) if mask_name else None
    if axes is None:
        return None
    mask_array = analysis.samples.pad_rows(read_mask(mask_name, analysis.samples, feed_index), feed_index)
    if mask_array.ndim != sum(axes):
        raise TrtTuiError(
            f"{mask_name} does not fit {tensor}", f"its shape is {mask_array.shape}, the tensor's {shape}", ""
        )
    return np.broadcast_to(expand_mask_to_axes(mask_array, axes), shape)


@dataclass(frozen=True)
class OutputSpread:
    """The spread of one judged output between several engines.

    Attributes:
        errors: The errors of each engine against the reference, by engine.
        worst_sample: The name of the sample in which most elements differ by NaN or Inf. Without such elements it is
            the sample with the largest finite spread; None if no sample has one.
        worst_sample_spread_db: The spread of that sample in dB; infinite if NaN or Inf differ in it.
        max_difference: The largest absolute difference between two engines where both are finite.
        elements: The number of compared elements.
        different_elements: The number of elements that are not equal in all engines. NaN equals NaN.
        nonfinite_differences: The number of those elements that are NaN or Inf in some engine.
    """

    name: str
    errors: Mapping[str, ErrorMetrics]
    worst_sample: SampleName | None = None
    worst_sample_spread_db: float = 0.0
    max_difference: float = 0.0
    elements: int = 0
    different_elements: int = 0
    nonfinite_differences: int = 0

    @property
    def sqnrs_db(self) -> dict[str, float]:
        """The SQNR of each engine in dB; infinite for an exact copy, minus infinity for NaN or Inf."""
        return {name: errors.comparable_sqnr_db for name, errors in self.errors.items()}

    @property
    def has_equal_results(self) -> bool:
        """True if all engines have equal results at this output."""
        return not self.different_elements

    @property
    def spread_db(self) -> float:
        """The difference between the best and the worst engine in dB.

        It is infinite if one of the SQNRs is not finite, unless all engines are equal or exact.
        """
        low, high = min(self.sqnrs_db.values()), max(self.sqnrs_db.values())
        if self.has_equal_results or low == math.inf:
            return 0.0
        return high - low if math.isfinite(low) else math.inf

    @property
    def spread_text(self) -> str:
        if self.has_equal_results:
            return f"{self.name}: equal in every bit" if self.elements else f"{self.name}: no elements to compare"
        texts = [f"{name} {add_decibel_unit(errors.sqnr_text(''))}" for name, errors in self.errors.items()]
        spread = f"{self.spread_db:.1f} dB" if math.isfinite(self.spread_db) else "without limit"
        nonfinite = f", {self.nonfinite_differences} of them by NaN or Inf" if self.nonfinite_differences else ""
        largest = "largest finite difference" if self.nonfinite_differences else "largest difference"
        if self.worst_sample is None:
            sample = ""
        elif math.isfinite(self.worst_sample_spread_db):
            sample = f"; most at sample {self.worst_sample}: {self.worst_sample_spread_db:.1f} dB"
        else:
            sample = f"; most NaN or Inf at sample {self.worst_sample}"
        return (
            f"{self.name}: spread {spread} ({', '.join(texts)}), {self.different_elements} of "
            f"{counted_noun_text(self.elements, 'element')} differ{nonfinite}, {largest} "
            f"{self.max_difference:.3g}{sample}"
        )

    def to_record(self) -> dict[str, Any]:
        return {
            "sqnr_db": {name: finite_or_none(value) for name, value in self.sqnrs_db.items()},
            "nonfinite": {name: errors.nonfinite_count for name, errors in self.errors.items()},
            "spread_db": finite_or_none(self.spread_db),
            "worst_sample": self.worst_sample.index if self.worst_sample is not None else None,
            **(
                {"worst_file": self.worst_sample.file}
                if self.worst_sample is not None and self.worst_sample.file
                else {}
            ),
            "worst_sample_spread_db": finite_or_none(self.worst_sample_spread_db),
            "max_difference": finite_or_none(self.max_difference),
            "elements": self.elements,
            "different_elements": self.different_elements,
            "nonfinite_differences": self.nonfinite_differences,
        }


@dataclass(frozen=True)
class Variation:
    """The variation of the results of one network: the spread between several engines and between batch sizes.

    Attributes:
        different_kernel: The first kernel that differs between two engines; "" if none does, or layers are unknown.
        batch_texts: The differences between a batch and its samples alone, one sentence for each engine.
    """

    runs: tuple[str, ...]
    outputs: tuple[OutputSpread, ...] = ()
    different_kernel: str = ""
    batch_texts: tuple[str, ...] = field(default=())

    @property
    def lines(self) -> list[str]:
        lines = [f"stability of {name_list_text(self.runs)}:"] if len(self.runs) > 1 else []
        lines += [f"  {output.spread_text}" for output in self.outputs]
        if self.different_kernel:
            lines.append(f"  first kernel that differs: {self.different_kernel}")
        return lines + [f"  {text}" for text in self.batch_texts]

    def to_record(self) -> dict[str, Any]:
        return {
            "engines": list(self.runs),
            "first_different_kernel": self.different_kernel,
            "batches": list(self.batch_texts),
            "outputs": {output.name: output.to_record() for output in self.outputs},
        }


def measure_output_spreads(
    analysis: Analysis, runs: Sequence[IndexedRunSource], feed_indices: Sequence[int]
) -> tuple[OutputSpread, ...]:
    """Measures the spread of each judged output between several runs. Masked outputs are left out."""
    spreads = []
    for judged in analysis.judged_outputs:
        if judged.mask or not all(judged.tensor in run.available_tensors for run in runs):
            continue
        sums = {run.run.name: ErrorSums() for run in runs}
        sqnrs_by_sample: list[np.ndarray] = []
        names: list[SampleName] = []
        nonfinite_by_sample: list[np.ndarray] = []
        largest, elements, different_elements = 0.0, 0, 0
        for index in feed_indices:
            count = analysis.samples.count_samples_of_feed(index)
            reference = take_judged_slice(analysis.get_reference_outputs(index)[judged.tensor], judged)
            arrays = [take_judged_slice(run.get_outputs(index)[judged.tensor], judged) for run in runs]
            for run, array in zip(runs, arrays, strict=True):
                sums[run.run.name].add_tensor_pair(reference, array)
            names += [analysis.samples.sample_name(index, row) for row in range(count)]
            sqnrs_by_sample.append(
                np.stack(
                    [compute_sqnr_db_by_sample(compute_error_sums_by_name(reference, array, count)) for array in arrays]
                )
            )
            different = np.logical_or.reduce([find_different_elements(arrays[0], array) for array in arrays[1:]])
            nonfinite = different & ~np.logical_and.reduce([np.isfinite(array) for array in arrays])
            nonfinite_by_sample.append(flatten_each_sample(nonfinite, count).sum(axis=1))
            elements, different_elements = elements + different.size, different_elements + int(different.sum())
            largest = max(
                [largest, *(_largest_finite_difference(first, second) for first, second in combinations(arrays, 2))]
            )
        sample, spread_db = _find_worst_sample(
            np.concatenate(sqnrs_by_sample, axis=1), np.concatenate(nonfinite_by_sample)
        )
        spreads.append(
            OutputSpread(
                judged.name,
                {name: item.compute_error_metrics() for name, item in sums.items()},
                names[sample] if sample is not None else None,
                spread_db,
                largest,
                elements,
                different_elements,
                int(sum(counts.sum() for counts in nonfinite_by_sample)),
            )
        )
    return tuple(spreads)


def find_different_elements(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns a bool array that is True where two arrays of one shape differ. NaN equals NaN, and -0 equals 0."""
    return np.asarray((first != second) & ~(np.isnan(first) & np.isnan(second)))


def _largest_finite_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the largest absolute difference where both arrays are finite; 0 if there is no such element."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(first) & np.isfinite(second)
    with np.errstate(over="ignore"):
        difference = np.abs(np.where(finite, first, 0.0) - np.where(finite, second, 0.0))
    return float(difference.max(initial=0.0))


def _find_worst_sample(sqnrs_db: np.ndarray, nonfinite_counts: np.ndarray) -> tuple[int | None, float]:
    """Returns the sample with the largest spread between engines, and that spread in dB.

    Args:
        sqnrs_db: The SQNR of each engine (row) at each sample (column).
        nonfinite_counts: The number of elements of each sample that differ by NaN or Inf. If there are any, the sample
            with most of them counts, and its spread is infinite.
    """
    if nonfinite_counts.any():
        return int(np.argmax(nonfinite_counts)), math.inf
    with np.errstate(invalid="ignore"):
        spreads = np.max(sqnrs_db, axis=0) - np.min(sqnrs_db, axis=0)
    finite = np.where(np.isfinite(spreads), spreads, 0.0)
    index = int(np.argmax(finite)) if finite.size else 0
    return (index, float(finite[index])) if finite.size and finite[index] > 0 else (None, 0.0)


def batch_difference_text(
    run_name: str, rows: int, batched: Mapping[str, np.ndarray], single: Mapping[str, np.ndarray]
) -> str:
    """Returns a sentence about the difference between a batch and its samples, each executed alone.

    Args:
        batched: The outputs of one execution of the batch.
        single: The outputs of one execution for each sample, joined along the first axis.
    """
    title = f"{run_name}: batch {rows} and batch 1 "
    if not batched:
        return f"{title}have no output to compare"
    texts = []
    for name, array in batched.items():
        alone = single.get(name)
        if alone is None:
            texts.append(f"{name} is missing in batch 1")
        elif alone.shape != array.shape:
            texts.append(f"{name} has the shape {_shape_text(array)} in the batch and {_shape_text(alone)} alone")
        elif different := int(find_different_elements(alone, array).sum()):
            sums = ErrorSums()
            sums.add_tensor_pair(alone, array)
            texts.append(
                f"{name} {add_decibel_unit(sums.compute_error_metrics().sqnr_text(''))} "
                f"({different} of {counted_noun_text(array.size, 'element')})"
            )
    return title + (f"differ: {', '.join(texts)}" if texts else "give equal results in every bit")


def _shape_text(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "of a single number"


STABILITY = ResultKind[None, Variation]("stability")
"""The spread between several engines."""


MIN_SAME_INPUT_DB = 60.0
"""The minimum SQNR at which two inputs count as equal. Casts and codecs of FP32 have a higher one."""

_IDENTITY_FIT = (1.0, 0.0)
"""The scale and offset of inputs that differ only by noise."""

_MAX_EXPLAINED_ELEMENTS = 1 << 20
"""The maximum number of elements from which an explanation is sought."""


@dataclass(frozen=True)
class InputDifference:
    """The difference between an input tensor in production and the same input here.

    Attributes:
        description: The difference in words, with an explanation if there is one.
    """

    input_name: str
    errors: ErrorMetrics
    description: str

    @property
    def is_equal_except_rounding(self) -> bool:
        """True if both inputs are equal except for rounding."""
        errors = self.errors
        return errors.exact or errors.sqnr_db is not None and errors.sqnr_db >= MIN_SAME_INPUT_DB


def compare_input_over_feeds(input_name: str, array_pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> InputDifference:
    """Compares a local input with the input in production, over all feeds.

    Args:
        array_pairs: For each feed, the local array and the array in production, of the same shape.
    """
    sums = ErrorSums()
    first: list[tuple[np.ndarray, np.ndarray]] = []
    held_elements = 0
    for local, production in array_pairs:
        sums.add_tensor_pair(local, production)
        if held_elements < _MAX_EXPLAINED_ELEMENTS:
            first.append((np.array(local, np.float64), np.array(production, np.float64)))
            held_elements += local.size
    errors = sums.compute_error_metrics()
    figure = add_decibel_unit(errors.sqnr_text(""))
    difference = InputDifference(input_name, errors, f"{input_name} is the same ({figure})")
    if difference.is_equal_except_rounding:
        return difference
    sides = [np.concatenate(side) for side in zip(*first, strict=True)]
    if sides and _fit_scale_and_offset(*sides) == _IDENTITY_FIT:
        return InputDifference(
            input_name, errors, f"{input_name} differs by {figure}, as after another resize, decoder or type"
        )
    explanation = explain_input_difference(*sides) if sides else ""
    return InputDifference(
        input_name, errors, f"{input_name} differs ({figure}){f': {explanation}' if explanation else ''}"
    )


def explain_input_difference(local_array: np.ndarray, production_array: np.ndarray) -> str:
    """Returns an explanation why an input differs in production, such as a scale or swapped channels; "" if there is
    none.

    The possible transformations are a scale and an offset, channels in another order, an axis mirrored or swapped, and
    samples in another order.

    Args:
        local_array, production_array: Arrays of the same shape, first axis samples.
    """
    if local_array.size == 0 or not (np.isfinite(local_array).all() and np.isfinite(production_array).all()):
        return "production has NaN or Inf" if local_array.size else ""
    if (fit := _fit_scale_and_offset(local_array, production_array)) and fit != _IDENTITY_FIT:
        return f"there it is {_linear_formula_text(*fit)}"
    for axis in range(1, local_array.ndim):
        if 2 <= local_array.shape[axis] <= 4:
            turned = np.flip(local_array, axis)
            if _fit_scale_and_offset(turned, production_array) == _IDENTITY_FIT:
                return f"its channels (axis {axis}) are in reverse order, as RGB and BGR are"
            channel_fits = [
                _fit_scale_and_offset(np.take(local_array, index, axis), np.take(production_array, index, axis))
                for index in range(local_array.shape[axis])
            ]
            if all(channel_fits) and any(fit_of_channel != _IDENTITY_FIT for fit_of_channel in channel_fits):
                lines = "; ".join(
                    f"channel {index} is {_linear_formula_text(*fit_of_channel)}"
                    for index, fit_of_channel in enumerate(channel_fits)
                    if fit_of_channel
                )
                return f"different normalisation: there {lines}"
    if (
        local_array.ndim == 4
        and local_array.shape[2] == local_array.shape[3]
        and _fit_scale_and_offset(local_array.swapaxes(2, 3), production_array) == _IDENTITY_FIT
    ):
        return "height and width are swapped"
    for axis in range(1, local_array.ndim):
        if (
            local_array.shape[axis] > 4
            and _fit_scale_and_offset(np.flip(local_array, axis), production_array) == _IDENTITY_FIT
        ):
            return f"it is mirrored along axis {axis}"
    if len(local_array) > 1 and (order := _find_sample_order(local_array, production_array)) is not None:
        return f"the samples are in another order: there {', '.join(map(str, order[:5]))}, … of those here"
    return ""


def _linear_formula_text(scale: float, offset: float) -> str:
    text = f"{number_text(scale)} times this" if scale != 1 else "this"
    return text + (f" {'+' if offset > 0 else '-'} {number_text(abs(offset))}" if offset else "")


def _fit_scale_and_offset(local_array: np.ndarray, production_array: np.ndarray) -> tuple[float, float] | None:
    """Fits a scale and an offset that convert one array into another; None if the result has less than 40 dB.

    Equal arrays have (1.0, 0.0).
    """
    local_values, production_values = local_array.ravel(), production_array.ravel()
    spread = float(np.var(local_values))
    if not spread:
        return None
    scale = (
        float(np.mean((local_values - local_values.mean()) * (production_values - production_values.mean()))) / spread
    )
    offset = float(production_values.mean() - scale * local_values.mean())
    rest, whole = float(np.var(production_values - scale * local_values)), float(np.var(production_values))
    if not scale or rest > 1e-4 * whole:
        return None
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    return scale, 0.0 if abs(offset) < 1e-3 * float(np.abs(production_values).max()) else offset


def _find_sample_order(local_array: np.ndarray, production_array: np.ndarray) -> Sequence[int] | None:
    """Returns the indices of the local samples in the order of production; None if a sample has no equal.

    Also None if all samples are in the same order.
    """
    rows, production_rows = (
        local_array.reshape(len(local_array), -1),
        production_array.reshape(len(production_array), -1),
    )
    order = []
    for production_row in production_rows:
        distances = np.square(rows - production_row).sum(1)
        nearest = int(np.argmin(distances))
        if distances[nearest] > 1e-4 * float(np.square(production_row).sum()):
            return None
        order.append(nearest)
    return order if order != list(range(len(rows))) else None


ENGINE_SUFFIXES = (".plan", ".engine", ".trt")
_RUN_KIND_BY_SUFFIX = {
    ".onnx": RunKind.NETWORK_FILE,
    **dict.fromkeys((*DUMP_SUFFIXES, *PICKLE_SUFFIXES), RunKind.DUMP),
    **dict.fromkeys(ENGINE_SUFFIXES, RunKind.ENGINE_FILE),
}
PRODUCTION_STAGE = "production"

MIN_AGREEMENT_DB = 40.0
"""The SQNR from which on two outputs agree: an error of 1 % of the outputs."""

MAX_PRODUCTION_GAP_DB = 3.0
"""The gap in dB beyond which production differs from the tested run: its error against FP32 is larger by more."""

MIN_COMMON_ERROR_GAP_DB = 0.5
"""The gap in dB by which production must be nearer to the tested run than the worse of the two is to FP32.

Measured in INT8 on five networks, as gaps between the simulation and an execution of the exported network. The same
config had 0.8 to 20 dB, because a difference of one ulp changes some quantized values. FP32 and FP16 had at most 0.05
dB. Other ranges had less than 0 dB, except on one network where the weights cause most of the error.
"""


@dataclass(frozen=True)
class StageResult:
    """The results of one stage on the way to production, such as an ONNX file, an engine or production itself.

    Attributes:
        effect_text: The change that this stage makes, in a word or two: "quantization", "the build".
        result: The result against the reference; an `EngineResult` for an engine file. None for a config, whose results
            are stored under the config.
        accuracy_to_previous: The accuracy against the previous stage at the common outputs; None for the first stage.
        other_accuracies: Accuracies against other runs, by name. Production is compared with the simulated and built
            runs.
        input_differences: The differences between the inputs that production has dumped and the local ones.
    """

    run: Run
    effect_text: str
    result: RunResult | None = None
    accuracy_to_previous: Accuracy | None = None
    other_accuracies: tuple[tuple[str, Accuracy], ...] = ()
    input_differences: tuple[InputDifference, ...] = ()

    @property
    def engine_result(self) -> EngineResult | None:
        """The layers, latency and size of an engine in a file; None for another run."""
        return self.result if isinstance(self.result, EngineResult) else None


STAGES = ResultKind[str, StageResult]("stages")
"""The stages on the way to production, by name in their order. The results of a stage that is a config are stored with
the config."""


def parse_stage_run(stage_text: str) -> Run:
    """Parses the text of a stage: ``NAME=FILE``, a run of `RUN_TITLES`, or such a run as built, as ``trt-fp16``.

    Raises:
        InputError: the text has another form.
    """
    name, equals, file = stage_text.partition("=")
    name = name.strip()
    if not equals:
        run = name.removeprefix("trt-")
        if run not in RUN_TITLES:
            raise InputError(
                f"--stage {stage_text}: unknown stage",
                f"available without a file: {', '.join(RUN_TITLES)}, and as built "
                f"{', '.join(f'trt-{run}' for run in RUN_TITLES)}",
                "Name a file: --stage NAME=Q.onnx, NAME=outputs.npz or NAME=model.plan.",
            )
        return Run(name, RunKind.BUILT_ENGINE if name.startswith("trt-") else RunKind.SIMULATED_CONFIG, run)
    if not name or not file:
        raise InputError(
            f"--stage {stage_text}: {'a file' if name else 'a name'} is missing",
            "",
            "Write it as NAME=FILE, for example --stage qdq=quantized.onnx.",
        )
    return Run(name, find_run_kind_of_file(file, f"--stage {stage_text}"), file_path=file)


def find_run_kind_of_file(file_name: str, option_text: str) -> RunKind:
    """Returns the kind of run of a file that the user names as a stage, by the suffix of the file name.

    Args:
        option_text: The option that names the file.

    Raises:
        InputError: the file cannot be a stage.
    """
    suffix = split_dump_spec(file_name)[0].suffix.lower()
    is_folder = suffix != ".onnx" and Path(file_name).is_dir()
    if is_folder or suffix in _RUN_KIND_BY_SUFFIX:
        return RunKind.DUMP if is_folder else _RUN_KIND_BY_SUFFIX[suffix]
    raise InputError(
        f"{option_text}: the kind of {Path(file_name).name} is unknown",
        f"its name ends in {suffix or 'nothing'}",
        f"A network ends in .onnx, outputs in {' or '.join(DUMP_SUFFIXES)}, an engine in "
        f"{', '.join(ENGINE_SUFFIXES)}: rename or link the file.",
    )


def list_requested_stages(
    stage_texts: Sequence[str], engine_files: Sequence[str], outputs_file: str | None
) -> tuple[Run, ...]:
    """Returns all stages that the user requested: named stages in their order, then engine files, then production.

    Raises:
        InputError: a text cannot be parsed, two stages have the same name, or the file of production is not a dump.
    """
    runs = [parse_stage_run(text) for text in stage_texts]
    file_names = [Path(file).name for file in engine_files]
    runs += [
        Run(name if file_names.count(name) == 1 else file, RunKind.ENGINE_FILE, file_path=file)
        for file, name in zip(engine_files, file_names, strict=True)
    ]
    if outputs_file is not None:
        if find_run_kind_of_file(outputs_file, "--outputs") is not RunKind.DUMP:
            raise InputError(
                f"--outputs {Path(outputs_file).name} is not a dump of tensors",
                "",
                f"Give {DUMP_FORMATS}; an engine is named with --engine.",
            )
        runs.append(Run(PRODUCTION_STAGE, RunKind.DUMP, file_path=outputs_file))
    names = [run.name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"two stages are called {twice[0]}", "their rows would look alike", "Give each a different name."
        )
    return tuple(runs)


def worst_output_sqnr_db(accuracy: Accuracy | None) -> float | None:
    """Returns the SQNR of the worst output: infinite for an exact copy, minus infinity for NaN or Inf; None without
    outputs.

    For an integer output, the fraction that differs counts as the noise-to-signal ratio.
    """
    errors = accuracy.worst_errors if accuracy is not None else None
    if errors is not None and errors.mismatch is not None and not errors.exact:
        return -10 * math.log10(errors.mismatch)
    return errors.comparable_sqnr_db if errors is not None else None


def first_divergence_text(
    stages_with_accuracy: Sequence[tuple[StageResult, Accuracy | None]],
    targets: Sequence[Target],
    has_unmeasured_stages: bool = False,
) -> str:
    """Returns a line about the first stage at which the results go wrong; "" if no stage has results.

    This is the first stage that misses the targets. If its outputs agree and only the metric fails, the cause is behind
    the judged outputs. If no stage misses the targets, the line names the stage that is furthest from its predecessor.

    Args:
        stages_with_accuracy: The stages in their order, each with its accuracy against the reference.
        has_unmeasured_stages: True if other stages are still to be measured. It is then unknown whether all meet the
            targets.
    """
    measured_stages = [(stage, accuracy) for stage, accuracy in stages_with_accuracy if accuracy is not None]
    for stage, accuracy in measured_stages:
        result = judge_accuracy(targets, accuracy)
        if result is None or result.passes:
            continue
        figure = max(
            (
                db
                for db in (worst_output_sqnr_db(accuracy), worst_output_sqnr_db(stage.accuracy_to_previous))
                if db is not None
            ),
            default=-math.inf,
        )
        metric_alone = all(
            failed_target.kind == "metric" for failed_target in targets if not failed_target.is_met_by(accuracy)
        )
        if metric_alone and not accuracy.nonfinite_count and figure >= MIN_AGREEMENT_DB:
            return (
                f"first diverges: {stage.run.name}: its outputs agree, the metric does not: look at the postprocessing"
            )
        return f"first diverges: {stage.run.name}: {stage.effect_text}"
    lowest = min(measured_stages, key=lambda item: _stage_sqnr_db(item[0], item[1]), default=None)
    if lowest is None or has_unmeasured_stages:
        return ""
    stage, accuracy = lowest
    against = stage.accuracy_to_previous if stage.accuracy_to_previous is not None else accuracy
    worst_errors = against.worst_errors if against is not None else None
    figure_text = add_decibel_unit(worst_errors.sqnr_text("")) if worst_errors is not None else ""
    compared_with = "the stage before" if stage.accuracy_to_previous is not None else "FP32"
    return (
        f"no stage misses the target; furthest from {compared_with} is {stage.run.name}, {figure_text}: "
        f"{stage.effect_text}"
    )


def _stage_sqnr_db(stage_result: StageResult, accuracy: Accuracy | None) -> float:
    db = worst_output_sqnr_db(
        stage_result.accuracy_to_previous if stage_result.accuracy_to_previous is not None else accuracy
    )
    return db if db is not None else math.inf


def compare_production_with_tested_run(
    stage_result: StageResult, accuracy: Accuracy | None, tested_accuracy: Accuracy | None, tested_name: str
) -> tuple[bool, str] | None:
    """Returns True if production computes the same as the tested run, together with a sentence; None if it is unknown.

    Two runs with the same precisions have mostly the same errors, so they are nearer to each other than to FP32. With
    other ranges or other layers they are not. Without such errors both must agree to `MIN_AGREEMENT_DB` in the part of
    each output that varies between samples.

    Args:
        accuracy: The accuracy of production against the reference.
        tested_accuracy: The accuracy of the tested run against the reference.
        tested_name: The name of the tested run.
    """
    if wrong := [entry for entry in stage_result.input_differences if not entry.is_equal_except_rounding]:
        return False, f"production gets other inputs: {wrong[0].description}. Compare the data preparation first."
    production_db, tested_db = worst_output_sqnr_db(accuracy), worst_output_sqnr_db(tested_accuracy)
    accuracy_between = next(
        (
            entry
            for name, entry in stage_result.other_accuracies
            if name == tested_name and worst_output_sqnr_db(entry) is not None
        ),
        None,
    )
    between = worst_output_sqnr_db(accuracy_between)
    if accuracy is None or accuracy_between is None or production_db is None or tested_db is None or between is None:
        return None
    variations_db = [
        output.variation_db
        for name in accuracy_between.outputs
        if (output := accuracy.outputs.get(name)) is not None and output.variation_db is not None
    ]
    text = (
        f"{_sqnr_db_text(production_db)} against FP32, "
        f"{tested_name} {_sqnr_db_text(tested_db)}; {_sqnr_db_text(between)} between them"
    )
    is_one_broken = (production_db == -math.inf) is not (tested_db == -math.inf)
    if (
        between == math.inf
        or between + min(variations_db, default=0.0) >= MIN_AGREEMENT_DB
        or (
            not is_one_broken
            and production_db >= tested_db - MAX_PRODUCTION_GAP_DB
            and between >= min(production_db, tested_db) + MIN_COMMON_ERROR_GAP_DB
        )
    ):
        return True, f"production agrees with the tested config: {text}."
    return False, (
        f"production differs from the tested config: {text}. Look for another engine, config or ranges, "
        "other preprocessing (--inputs compares the inputs of production), and the steps after the "
        "network."
    )


def _sqnr_db_text(value_db: float) -> str:
    if value_db == -math.inf:
        return "NaN or Inf"
    return add_decibel_unit(
        decibels_text(value_db if math.isfinite(value_db) else None, exact=value_db == math.inf, mark="")
    )
