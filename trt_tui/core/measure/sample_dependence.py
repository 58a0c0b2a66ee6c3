"""The dependence of the reference outputs on the sample, and the accuracy that meaningless outputs reach.

A pass proves little if outputs that have nothing to do with their inputs pass as well. Two values show this. Both
depend only on the network and the data, so they are measured once for all configs:
- The variation of an output is the energy of its deviations from their mean over the samples, relative to its whole
  energy. An SQNR far above the variation is mostly the SQNR of a constant.
- The shuffled run gives each sample the reference's outputs of another sample. A metric is also computed on the
  reference's values in random order. A reference on wrong inputs may score no better than that.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.error_metrics import (
    ErrorMetrics,
    ErrorSums,
    flatten_each_sample,
    pair_each_sample_with_another,
)
from trt_tui.core.measure.judged_outputs import INTEGER_KIND, JudgedOutput, find_unmasked_elements, take_judged_slice
from trt_tui.core.measure.results import Accuracy, Caveat, OutputErrors
from trt_tui.core.measure.user_metric import SHUFFLED, MetricScorer
from trt_tui.formatting import escape_hidden_characters, output_variation_text

MAX_ELEMENTS = 1 << 18
"""The maximum number of elements a sample. Of a larger sample, elements are drawn at random: all values are means over
elements."""

MAX_REPEAT_ERROR_DB = -66.0
"""The variation below which an output is called steady. Its samples differ by less than half a step of FP16, 2^-11 of a
value, so FP16 could not distinguish them. Boxes on a grid and other outputs with a large constant part vary by -40 dB
or more."""

MIN_DEPENDENCE_DB = -20.0
"""The variation below which reports name an output: a hundredth of its energy."""


@dataclass
class _SampleVariation:
    """The sums from which the variation of one output between samples is computed.

    Differences from the first sample are summed, which keeps all digits if samples are similar.
    """

    first_sample: np.ndarray
    count: int = 0
    energy: float = 0.0
    squared_differences: float = 0.0
    difference_sums: np.ndarray | float = 0.0

    def add_samples(self, samples: np.ndarray) -> None:
        """Adds samples to the variation sums, float64 ``(samples, elements)``."""
        differences = samples - self.first_sample
        self.count += len(samples)
        self.energy += float(np.einsum("ij,ij->", samples, samples))
        self.squared_differences += float(np.einsum("ij,ij->", differences, differences))
        self.difference_sums = self.difference_sums + differences.sum(0)

    @property
    def variation_db(self) -> float | None:
        """The unbiased variation in dB; minus infinity if all samples are equal, None with a single sample."""
        if self.count < 2:
            return None
        deviations = self.squared_differences - float(np.square(self.difference_sums).sum()) / self.count
        share = deviations / self.energy * self.count / (self.count - 1) if self.energy > 0 else 0.0
        return 10 * math.log10(share) if share > 0 else -math.inf


@dataclass(frozen=True)
class SampleDependence:
    """The dependence of the reference outputs on the sample, and the accuracy that meaningless outputs reach.

    Attributes:
        variations_db: The variation in dB by judged float output. An output whose samples differ in shape is absent.
        meaningless_accuracies: The accuracy of meaningless outputs, by `trt_tui.core.measure.user_metric.SHUFFLED`
            and `SCRAMBLED`. The shuffled accuracy lacks outputs that cannot be exchanged between samples. The scrambled
            one has only the metric, since any other value is worse than when shuffled.
    """

    variations_db: Mapping[str, float] = field(default_factory=dict)
    meaningless_accuracies: Mapping[str, Accuracy] = field(default_factory=dict)

    def make_steady_output_caveats(self, output_names: Sequence[str]) -> tuple[Caveat, ...]:
        """Returns one caveat for each judged output that hardly varies between samples."""
        steady = [(name, self.variations_db[name])
                  for name in output_names
                  if self.variations_db.get(name, 0.0) < MAX_REPEAT_ERROR_DB]
        return tuple(Caveat("steady output", f"{escape_hidden_characters(name)} hardly varies between samples "
                            f"(variation: {output_variation_text(level_db)})")
                     for name, level_db in steady)


def measure_sample_dependence(samples: Samples, feed_indices: Sequence[int], judged_outputs: Sequence[JudgedOutput],
                              get_reference: Callable[[int],
                                                      Mapping[str, np.ndarray]], classifier_output: JudgedOutput | None,
                              metric_scorer: MetricScorer | None) -> SampleDependence:
    """Measures how much the reference depends on the sample.

    Arguments are those of `trt_tui.core.measure.accuracy_reducer.AccuracyReducer`.
    """
    variations: dict[str, _SampleVariation | None] = {}
    sums = {judged_output.name: ErrorSums() for judged_output in judged_outputs if judged_output.kind != INTEGER_KIND}
    differ = {judged_output.name: [0, 0] for judged_output in judged_outputs if judged_output.kind == INTEGER_KIND}
    fixed: set[str] = set()
    agreed = count = 0
    donors = pair_each_sample_with_another(len(feed_indices))
    for position, index in enumerate(feed_indices):
        rows, tensors = samples.count_samples_of_feed(index), get_reference(index)
        other_tensors, places = tensors, pair_each_sample_with_another(rows)
        if len(feed_indices) > 1:
            other_tensors = get_reference(feed_indices[donors[position]])
            places = np.arange(rows) % samples.count_samples_of_feed(feed_indices[donors[position]])
        count += rows
        for judged_output in judged_outputs:
            own, exchanged_values = take_judged_slice(tensors[judged_output.tensor], judged_output), take_judged_slice(
                other_tensors[judged_output.tensor], judged_output)
            if own.ndim and len(own) == rows and exchanged_values.ndim and len(exchanged_values) > places.max(
                    initial=0):
                exchanged_values = exchanged_values[places]
            is_exchangeable = own.shape == exchanged_values.shape and (len(feed_indices) > 1
                                                                       or own.ndim > 0 and len(own) == rows > 1)
            if not is_exchangeable:
                fixed.add(judged_output.name)
            if judged_output.kind == INTEGER_KIND:
                if is_exchangeable:
                    differ[judged_output.name][0] += int(np.count_nonzero(own != exchanged_values))
                    differ[judged_output.name][1] += own.size
                continue
            is_counted = find_unmasked_elements(judged_output, samples, index, tensors[judged_output.tensor])
            elements = _flatten_unmasked_elements(own, is_counted, rows)
            variation_sums = variations.setdefault(judged_output.name, _SampleVariation(elements[0].copy()))
            if variation_sums is not None and variation_sums.first_sample.size == elements.shape[1]:
                variation_sums.add_samples(elements)
            else:
                variations[judged_output.name] = None
            if is_exchangeable:
                sums[judged_output.name].add_tensor_pair(elements,
                                                         _flatten_unmasked_elements(exchanged_values, is_counted, rows))
                if judged_output is classifier_output:
                    agreed += int((own.reshape(rows, -1).argmax(1) == exchanged_values.reshape(rows,
                                                                                               -1).argmax(1)).sum())
    outputs = {}
    for judged_output in judged_outputs:
        if judged_output.name not in fixed:
            integers = differ.get(judged_output.name)
            outputs[judged_output.name] = OutputErrors(sums[judged_output.name].compute_error_metrics(
            ) if integers is None else ErrorMetrics.from_sums({"differ": integers[0], "count": integers[1] or 1},
                                                              exact=not integers[0]))
    levels = {
        name: judged_output.variation_db
        for name, judged_output in variations.items()
        if judged_output is not None
    }
    metrics = metric_scorer.score_meaningless_outputs(feed_indices) if metric_scorer is not None else {}
    agreement = agreed / count if classifier_output is not None and not fixed else None
    runs = {SHUFFLED: Accuracy(outputs, metrics.get(SHUFFLED, {}), agreement, count, count)}
    runs |= {name: Accuracy({}, metric, None, count, count) for name, metric in metrics.items() if name not in runs}
    return SampleDependence({name: level_db for name, level_db in levels.items() if level_db is not None}, runs)


def _flatten_unmasked_elements(array: np.ndarray, is_unmasked: np.ndarray | None, sample_count: int) -> np.ndarray:
    """Returns the elements of each sample as one row, float64 ``(samples, elements)``, with 0 for masked elements.

    At most `MAX_ELEMENTS` elements are drawn at random.
    """
    flat = flatten_each_sample(array if is_unmasked is None else np.where(is_unmasked, array, 0), sample_count)
    if flat.shape[1] > MAX_ELEMENTS:
        flat = flat[:, np.random.default_rng(0).integers(0, flat.shape[1], MAX_ELEMENTS)]
    flat = flat.astype(np.float64)
    return np.where(np.isfinite(flat), flat, 0.0)
