"""The random draw of samples that are measured first, and the estimate of a sum over all samples from the drawn
samples.

The judged error is a sum over samples, and one execution shows the contribution of each sample. An error share is a sum
of contributions too, which grow with the error of the sample. So a sample is drawn with a probability that grows with
its error, by the scheme of Rao, Hartley and Cochran ("On a simple procedure of unequal probability sampling without
replacement", 1962). All samples are divided at random into as many parts as are to be drawn. One sample is drawn from
each part, in proportion to these probabilities. Let y be the contribution of a drawn sample, p its probability and P
that of its part. The sum over parts of y·P/p is then an unbiased estimate of the whole sum. Its variance has an
unbiased estimate that is never negative. Once every sample is a part by itself, the estimate is the exact sum without
variance.

More samples are drawn by splitting parts at random. The drawn sample stays in the half that contains it, because it was
drawn in proportion from that half. Only the other half is drawn from. So the samples of a stage include all samples of
earlier stages, and each stage is a valid draw by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

UNIFORM_FRACTION = 0.3
"""The fraction of the probability that is spread evenly over samples. The error of a sample is known from one config
only. It may be small there by chance and much larger in another config."""

MIN_SAMPLES_FOR_INTERVAL = 4
"""The minimum number of samples for an interval. Fewer samples give an estimate alone."""

_NORMAL_QUANTILE = 1.959964
"""Half the width, in standard deviations, of the interval that contains 95 % of a normal distribution."""


@dataclass(frozen=True)
class StratifiedSampleDraw:
    """A random draw of samples: all samples are divided into random parts, and one sample is drawn from each part.

    Attributes:
        samples: Indices of the drawn samples; the samples of the previous stage come first.
        probabilities: The probability of each drawn sample.
        part_probabilities: The probability of each part; they add up to 1.
        variance_factor: The factor of the variance of an estimate; 0 if all samples are drawn.
    """

    samples: tuple[int, ...]
    probabilities: np.ndarray
    part_probabilities: np.ndarray
    variance_factor: float


def draw_stratified_samples(sample_errors: np.ndarray, draw_sizes: Sequence[int],
                            seed: int = 0) -> list[StratifiedSampleDraw]:
    """Draws samples at random in stages, with a probability that grows with their error. Each stage includes the
    previous one.

    Args:
        sample_errors: The error of each sample, ``(samples,)``: finite, not negative, and not all zero.
        draw_sizes: The number of samples in each stage, increasing, at most the number of samples.
    """
    rng, count = np.random.default_rng(seed), len(sample_errors)
    chance = (1 - UNIFORM_FRACTION) * sample_errors / sample_errors.sum() + UNIFORM_FRACTION / count

    def draw_one_sample(part: np.ndarray) -> int:
        return int(rng.choice(part, p=chance[part] / chance[part].sum()))

    parts = {draw_one_sample(part): part for part in np.array_split(rng.permutation(count), draw_sizes[0])}
    stages = [_make_sample_draw(parts, chance)]
    for size in draw_sizes[1:]:
        while len(parts) < size:
            max_part_size = max(map(len, parts.values()))
            largest = [unit for unit, part in parts.items() if len(part) == max_part_size]
            unit = largest[rng.integers(len(largest))]
            mixed = rng.permutation(parts[unit])
            half_size = max_part_size // 2 + int(max_part_size % 2 and rng.random() < 0.5)
            own_half, other_half = (mixed[:half_size],
                                    mixed[half_size:]) if unit in mixed[:half_size] else (mixed[half_size:],
                                                                                          mixed[:half_size])
            parts[unit] = own_half
            parts[draw_one_sample(other_half)] = other_half
        stages.append(_make_sample_draw(parts, chance))
    return stages


def _make_sample_draw(samples_by_part: dict[int, np.ndarray], probabilities: np.ndarray) -> StratifiedSampleDraw:
    units = list(samples_by_part)
    sums = np.array([probabilities[part].sum() for part in samples_by_part.values()])
    sizes, count = np.array([len(part) for part in samples_by_part.values()], np.float64), len(probabilities)
    squares = float((sizes ** 2).sum())
    spread = (squares - count) / (count ** 2 - squares) if len(units) > 1 else math.nan
    return StratifiedSampleDraw(tuple(units), probabilities[units], sums, spread if len(units) < count else 0.0)


def estimate_sum_over_all_samples(values: np.ndarray, sample_draw: StratifiedSampleDraw) -> tuple[float, float]:
    """Returns the estimate of a sum over all samples from a draw, and half the width of its 95 % interval.

    The half width is 0 if all samples were drawn, and NaN with fewer than `MIN_SAMPLES_FOR_INTERVAL` samples.

    Args:
        values: The contribution of each drawn sample, finite, ``(samples,)``.
    """
    total = float(sample_draw.part_probabilities @ (values / sample_draw.probabilities))
    if sample_draw.variance_factor == 0:
        return total, 0.0
    if len(values) < MIN_SAMPLES_FOR_INTERVAL:
        return total, math.nan
    return total, student_t_quantile(_count_degrees_of_freedom(sample_draw)) * _estimate_standard_error(
        values, sample_draw)


def p_value_of_sum_at_most(values: np.ndarray, sample_draw: StratifiedSampleDraw, bound: float) -> float:
    """Returns the p-value of the hypothesis that a sum over all samples is at most a bound, by Student's t test.

    It is 0 or 1 if all samples were drawn or the drawn samples agree, and 1 with fewer than `MIN_SAMPLES_FOR_INTERVAL`
    samples.

    Args:
        values: The contribution of each drawn sample, finite, ``(samples,)``.
    """
    distance = estimate_sum_over_all_samples(values, sample_draw)[0] - bound
    if sample_draw.variance_factor > 0 and len(values) < MIN_SAMPLES_FOR_INTERVAL:
        return 1.0
    error = _estimate_standard_error(values, sample_draw)
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    return student_t_tail(distance / error, _count_degrees_of_freedom(sample_draw))


def _estimate_standard_error(values: np.ndarray, sample_draw: StratifiedSampleDraw) -> float:
    return math.sqrt(sample_draw.variance_factor) * estimate_standard_deviation(values, sample_draw)


def _count_degrees_of_freedom(sample_draw: StratifiedSampleDraw) -> float:
    """Returns the degrees of freedom of the spread, as if all parts were equally probable."""
    return 1 / float(sample_draw.part_probabilities @ sample_draw.part_probabilities) - 1


def estimate_standard_deviation(values: np.ndarray, sample_draw: StratifiedSampleDraw) -> float:
    """Returns the standard deviation of the separate estimates that the drawn samples give of a sum over all samples.

    It is 0 with a single sample.
    """
    scaled = values / sample_draw.probabilities
    return math.sqrt(float(sample_draw.part_probabilities @ (scaled - sample_draw.part_probabilities @ scaled) ** 2))


def student_t_quantile(degrees_of_freedom: float) -> float:
    """Returns half the width of the 95 % interval of Student's t distribution.

    Accurate to 1 % from 3 degrees of freedom on. Source: Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.5.

    Args:
        degrees_of_freedom: At least 1.
    """
    if degrees_of_freedom < 1.5:
        return 12.706
    if degrees_of_freedom < 2.5:
        return 4.303
    normal_quantile = _NORMAL_QUANTILE
    terms = ((normal_quantile**3 + normal_quantile) / 4,
             (5 * normal_quantile**5 + 16 * normal_quantile**3 + 3 * normal_quantile) / 96,
             (3 * normal_quantile**7 + 19 * normal_quantile**5 + 17 * normal_quantile**3 - 15 * normal_quantile) / 384,
             (79 * normal_quantile**9 + 776 * normal_quantile**7 + 1482 * normal_quantile**5 - 1920 * normal_quantile**3
              - 945 * normal_quantile) / 92160)
    return normal_quantile + sum(term / degrees_of_freedom**power for power, term in enumerate(terms, 1))


def student_t_tail(value: float, degrees_of_freedom: float) -> float:
    """Returns the probability that a variable with Student's t distribution exceeds a value.

    The value is converted into that of a normal distribution, which is accurate to 4 % of the probability from 7
    degrees of freedom on. Source: Wallace, Bounds on normal approximations to Student's and the chi-square
    distributions, 1959.
    """
    normal = math.sqrt(degrees_of_freedom * math.log1p(value * value / degrees_of_freedom))
    normal *= (8 * degrees_of_freedom + 1) / (8 * degrees_of_freedom + 3)
    return math.erfc(math.copysign(normal, value) / math.sqrt(2)) / 2
