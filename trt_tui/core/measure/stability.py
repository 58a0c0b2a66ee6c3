"""The stability of results: the spread between several engines of one network, and between two batch sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.error_metrics import ErrorSums, compute_error_sums_by_sample, compute_sqnr_db_by_sample
from trt_tui.core.measure.judged_outputs import take_judged_slice
from trt_tui.core.measure.run_sources import IndexedRunSource
from trt_tui.formatting import add_decibel_unit, decibels_text, name_list_text


@dataclass(frozen=True)
class OutputSpread:
    """The spread of one judged output between several engines.

    Attributes:
        sqnrs_db: The SQNR of each engine against the reference, by engine; infinite for an exact copy, minus infinity
            for NaN or Inf.
        worst_sample: The index of the sample with the largest spread; None if no sample has a finite one.
        worst_sample_spread_db: The spread of that sample in dB.
        max_difference: The largest absolute difference between two engines.
    """

    name: str
    sqnrs_db: Mapping[str, float]
    worst_sample: int | None = None
    worst_sample_spread_db: float = 0.0
    max_difference: float = 0.0

    @property
    def spread_db(self) -> float:
        """The difference between the best and the worst engine in dB; infinite if only one of them is finite."""
        low, high = min(self.sqnrs_db.values()), max(self.sqnrs_db.values())
        return 0.0 if low == high else high - low

    @property
    def description(self) -> str:
        if not self.max_difference and not self.spread_db:
            return f"{self.name}: equal in every bit"
        texts = [f"{name} " + add_decibel_unit(decibels_text(value if math.isfinite(value) else None, mark="",
                                                             exact=value == math.inf, nan=int(value == -math.inf)))
                 for name, value in self.sqnrs_db.items()]
        sample = (f"; most at sample {self.worst_sample}: {self.worst_sample_spread_db:.1f} dB"
                  if self.worst_sample is not None else "")
        spread = f"{self.spread_db:.1f} dB" if math.isfinite(self.spread_db) else "without limit"
        return (f"{self.name}: spread {spread} ({', '.join(texts)}), largest difference "
                f"{self.max_difference:.3g}{sample}")


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
            "batches": list(self.batch_texts), "outputs": {
                output.name: {
                    "sqnr_db": {name: value if math.isfinite(value) else None
                                for name, value in output.sqnrs_db.items()},
                    "spread_db": output.spread_db if math.isfinite(output.spread_db) else None,
                    "worst_sample": output.worst_sample, "worst_sample_spread_db": output.worst_sample_spread_db,
                    "max_difference": output.max_difference
                } for output in self.outputs
            }
        }


def measure_output_spreads(analysis: Analysis, runs: Sequence[IndexedRunSource],
                           feed_indices: Sequence[int]) -> tuple[OutputSpread, ...]:
    """Measures the spread of each judged output between several runs. Masked outputs are left out."""
    spreads = []
    for judged in analysis.judged_outputs:
        if judged.mask or not all(judged.tensor in run.available_tensors for run in runs):
            continue
        sums = {run.run.name: ErrorSums() for run in runs}
        by_sample: list[np.ndarray] = []
        largest = 0.0
        for index in feed_indices:
            count = analysis.samples.count_samples_of_feed(index)
            reference = take_judged_slice(analysis.get_reference_outputs(index)[judged.tensor], judged)
            arrays = [take_judged_slice(run.get_outputs(index)[judged.tensor], judged) for run in runs]
            for run, array in zip(runs, arrays, strict=True):
                sums[run.run.name].add_tensor_pair(reference, array)
            by_sample.append(np.stack([compute_sqnr_db_by_sample(compute_error_sums_by_sample(reference, array, count))
                                       for array in arrays]))
            largest = max(largest, *(_largest_difference(first, second) for first, second in combinations(arrays, 2)))
        sample, spread_db = _find_worst_sample(np.concatenate(by_sample, axis=1))
        spreads.append(OutputSpread(judged.name, {name: item.compute_error_metrics().comparable_sqnr_db
                                                  for name, item in sums.items()}, sample, spread_db, largest))
    return tuple(spreads)


def _largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        difference = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return float(np.nanmax(difference, initial=0.0)) if difference.size else 0.0


def _find_worst_sample(sqnrs_db: np.ndarray) -> tuple[int | None, float]:
    """Returns the sample with the largest finite spread over the rows of an array, and that spread in dB."""
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
    texts = []
    for name, array in batched.items():
        if single[name].shape == array.shape and not np.array_equal(single[name], array, equal_nan=True):
            sums = ErrorSums()
            sums.add_tensor_pair(single[name], array)
            texts.append(f"{name} {add_decibel_unit(sums.compute_error_metrics().sqnr_text(''))}")
    return f"{run_name}: batch {rows} and batch 1 " + (f"differ: {', '.join(texts)}" if texts else
                                                       "give equal results in every bit")
