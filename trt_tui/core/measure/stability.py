"""The stability of results: the spread between several engines of one network, and between two batch sizes.

Errors inside an engine are those of the results of its fusion groups against FP32 of the network.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.data.batches import SampleName
from trt_tui.core.engines.kernel_results import KernelResult, decode_kernel_result
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.error_metrics import (
    ErrorMetrics,
    ErrorSums,
    compute_error_metrics_of_all,
    compute_error_sums_by_sample,
    compute_sqnr_db_by_sample,
    flatten_each_sample,
)
from trt_tui.core.measure.judged_outputs import find_common_mask_name, read_mask, take_judged_slice
from trt_tui.core.measure.results import ResultKind
from trt_tui.core.measure.run_sources import IndexedRunSource
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_outputs import extract_subgraph_of_outputs
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import add_decibel_unit, counted_noun_text, name_list_text

ReadGroupResults = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""A function that reads the result of each group in an engine, from a feed and the FP32 tensors for that feed. A result
is one array, or several possible readings."""


def make_kernel_output_reader(runner: EngineRunner, kernel_results: Mapping[str, KernelResult]) -> ReadGroupResults:
    """Returns a function that reads group results from the debug tensors between the kernels of an engine as built."""
    names = {output.tensor for end in kernel_results.values() for output in end.possible_outputs}

    def read_group_results(feed: Mapping[str, np.ndarray],
                           reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        handed = runner.read_debug_tensors(feed, names)
        return {
            group: decode_kernel_result(handed, end, reference[end.tensor].shape)
            for group, end in kernel_results.items()
        }

    return read_group_results


def make_engine_output_reader(runner: Runner, tensors_by_group: Mapping[str, str]) -> ReadGroupResults:
    """Returns a function that reads group results from a marked engine, which has every group's result as an output."""
    def read_group_results(feed: Mapping[str, np.ndarray],
                           reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        outputs = runner.run(feed, list(tensors_by_group.values()))
        return {group: [outputs[tensor].astype(np.float32, copy=False).reshape(reference[tensor].shape)]
                for group, tensor in tensors_by_group.items() if outputs[tensor].size == reference[tensor].size}

    return read_group_results


def measure_engine_errors(analysis: Analysis, config: PrecisionConfig, read_group_results: ReadGroupResults,
                          tensors_by_group: Mapping[str, str],
                          feed_indices: Sequence[int]) -> Iterator[dict[str, ErrorMetrics]]:
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
    with load_adaptive_runner(analysis.backend, extract_subgraph_of_outputs(network.model, tensor_names), samples,
                              low_memory=True, few_executions=True) as runner:
        for index in feed_indices:
            feed = samples.read_full_feed(index)
            reference = runner.run(feed, tensor_names)
            for group, arrays in read_group_results(feed, reference).items():
                tensor = tensors_by_group[group]
                counts = _find_unmasked_elements(analysis, mask, tensor, index, reference[tensor].shape)
                reading_sums = [_sum_errors(reference[tensor], array * divisors.get(tensor, np.float32(1)), counts)
                                for array in arrays]
                if not reading_sums:
                    continue
                if group not in chosen:
                    chosen[group] = reading_sums.index(min(reading_sums, key=lambda item: item.noise_to_signal_ratio))
                if chosen[group] < len(reading_sums):
                    chosen_sums = reading_sums[chosen[group]]
                    sums.setdefault(group,
                                    ErrorSums()).merge_sums({name: getattr(chosen_sums, name)
                                                             for name in vars(chosen_sums)})
            yield dict(zip(sums, compute_error_metrics_of_all([*sums.values()]), strict=True))


def _find_unmasked_elements(analysis: Analysis, mask_name: str, tensor: str, feed_index: int,
                            shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns the elements of a tensor that no mask leaves out, as a bool array in its shape; None if all are compared.
    """
    axes = analysis.mask_axes_by_tensor.get(tensor) if mask_name else None
    if axes is None:
        return None
    mask_array = analysis.samples.pad_rows(read_mask(mask_name, analysis.samples, feed_index), feed_index)
    if mask_array.ndim != sum(axes):
        raise TrtTuiError(f"{mask_name} does not fit {tensor}",
                          f"its shape is {mask_array.shape}, the tensor's {shape}", "")
    sizes = [size if has else 1 for has, size in zip(axes, shape, strict=True)]
    return np.broadcast_to(mask_array.reshape(sizes), shape)


def _sum_errors(reference: np.ndarray, actual: np.ndarray, is_unmasked: np.ndarray | None) -> ErrorSums:
    sums = ErrorSums()
    if is_unmasked is None:
        sums.add_tensor_pair(reference, actual)
    else:
        sums.add_tensor_pair(reference[is_unmasked], actual[is_unmasked])
    return sums


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
    def is_equal(self) -> bool:
        """True if all engines have equal results at this output."""
        return not self.different_elements

    @property
    def spread_db(self) -> float:
        """The difference between the best and the worst engine in dB.

        It is infinite if one of the SQNRs is not finite, unless all engines are equal or exact.
        """
        low, high = min(self.sqnrs_db.values()), max(self.sqnrs_db.values())
        if self.is_equal or low == math.inf:
            return 0.0
        return high - low if math.isfinite(low) else math.inf

    @property
    def description(self) -> str:
        if self.is_equal:
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
        return (f"{self.name}: spread {spread} ({', '.join(texts)}), {self.different_elements} of "
                f"{counted_noun_text(self.elements, 'element')} differ{nonfinite}, {largest} "
                f"{self.max_difference:.3g}{sample}")

    def to_record(self) -> dict[str, Any]:
        return {
            "sqnr_db": {name: _finite_or_none(value) for name, value in self.sqnrs_db.items()},
            "nonfinite": {name: errors.nonfinite_count for name, errors in self.errors.items()},
            "spread_db": _finite_or_none(self.spread_db),
            "worst_sample": self.worst_sample.index if self.worst_sample is not None else None,
            **({"worst_file": self.worst_sample.file} if self.worst_sample is not None and self.worst_sample.file
               else {}),
            "worst_sample_spread_db": _finite_or_none(self.worst_sample_spread_db),
            "max_difference": _finite_or_none(self.max_difference), "elements": self.elements,
            "different_elements": self.different_elements, "nonfinite_differences": self.nonfinite_differences
        }


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class StabilityReport:
    """The spread between several engines of one network.

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
        lines += [f"  {output.description}" for output in self.outputs]
        if self.different_kernel:
            lines.append(f"  first kernel that differs: {self.different_kernel}")
        return lines + [f"  {text}" for text in self.batch_texts]

    def to_record(self) -> dict[str, Any]:
        return {
            "engines": list(self.runs), "first_different_kernel": self.different_kernel,
            "batches": list(self.batch_texts), "outputs": {output.name: output.to_record() for output in self.outputs}
        }


def measure_output_spreads(analysis: Analysis, runs: Sequence[IndexedRunSource],
                           feed_indices: Sequence[int]) -> tuple[OutputSpread, ...]:
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
            sqnrs_by_sample.append(np.stack([compute_sqnr_db_by_sample(compute_error_sums_by_sample(
                reference, array, count)) for array in arrays]))
            different = np.logical_or.reduce([find_different_elements(arrays[0], array) for array in arrays[1:]])
            nonfinite = different & ~np.logical_and.reduce([np.isfinite(array) for array in arrays])
            nonfinite_by_sample.append(flatten_each_sample(nonfinite, count).sum(axis=1))
            elements, different_elements = elements + different.size, different_elements + int(different.sum())
            largest = max([largest, *(_largest_finite_difference(first, second)
                                      for first, second in combinations(arrays, 2))])
        sample, spread_db = _find_worst_sample(np.concatenate(sqnrs_by_sample, axis=1),
                                               np.concatenate(nonfinite_by_sample))
        spreads.append(OutputSpread(judged.name, {name: item.compute_error_metrics() for name, item in sums.items()},
                                    names[sample] if sample is not None else None, spread_db, largest, elements,
                                    different_elements, int(sum(counts.sum() for counts in nonfinite_by_sample))))
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


def batch_difference_text(run_name: str, rows: int, batched: Mapping[str, np.ndarray],
                          single: Mapping[str, np.ndarray]) -> str:
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
            texts.append(f"{name} {add_decibel_unit(sums.compute_error_metrics().sqnr_text(''))} "
                         f"({different} of {counted_noun_text(array.size, 'element')})")
    return title + (f"differ: {', '.join(texts)}" if texts else "give equal results in every bit")


def _shape_text(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "of a single number"


STABILITY = ResultKind[None, StabilityReport]("stability")
"""The spread between several engines."""
