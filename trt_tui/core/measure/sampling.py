"""Which samples a figure is taken on first, and what a few of them say of all.

The judged error is a sum over samples, and how much of it each sample has is known from one run. A share is a sum of
what each sample adds to it; that is the larger, the larger the sample's error. So samples are drawn with a probability
that grows with their error, by the scheme of Rao, Hartley and Cochran ("On a simple procedure of unequal probability
sampling without replacement", 1962): all samples are dealt at random into as many parts as are to be drawn, and one is
drawn from each part, in proportion to these probabilities. The sum over parts of y·P/p is then an unbiased estimate of
the whole sum (y what the drawn sample adds, p its probability, P that of its part), its variance has an unbiased
estimate that is never negative, and both end in the exact sum with no variance once every sample is a part of its own.

More samples are drawn by splitting parts at random. What was drawn from a part was drawn in proportion from the half
that it falls into, so it stays, and only the other half is drawn from: the samples of a stage include those of all
stages before, and each stage is such a draw by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EVEN = 0.3
"""This part of the probability is spread evenly: the error of a sample is known from one run, may be small there by
chance and much larger in another."""

LEAST = 4
"""Fewer samples give an estimate and no interval."""

_NORMAL = 1.959964
"""Half the width in standard deviations of the interval that holds 95 % of a normal distribution."""


@dataclass(frozen=True)
class Stage:
    """Samples that are drawn, one from each part.

    Attributes:
        units: Their numbers; those of the stage before come first.
        chances: The probability of each.
        parts: The probability of each part; they add up to 1.
        spread: The factor of the variance; 0 if all samples are drawn.
    """

    units: tuple[int, ...]
    chances: np.ndarray
    parts: np.ndarray
    spread: float


def drawn(energies: np.ndarray, sizes: Sequence[int], seed: int = 0) -> list[Stage]:
    """The stages of a draw.

    Args:
        energies: The error of each sample, finite and not negative, ``(samples,)``; some are positive.
        sizes: How many are drawn in each stage, rising, at most as many as there are.
    """
    rng, count = np.random.default_rng(seed), len(energies)
    chance = (1 - EVEN) * energies / energies.sum() + EVEN / count

    def one_of(part: np.ndarray) -> int:
        return int(rng.choice(part, p=chance[part] / chance[part].sum()))

    parts = {one_of(part): part for part in np.array_split(rng.permutation(count), sizes[0])}
    stages = [_stage(parts, chance)]
    for size in sizes[1:]:
        while len(parts) < size:
            most = max(map(len, parts.values()))
            largest = [unit for unit, part in parts.items() if len(part) == most]
            unit = largest[rng.integers(len(largest))]
            mixed = rng.permutation(parts[unit])
            half = most // 2 + int(most % 2 and rng.random() < 0.5)
            mine, other = (mixed[:half], mixed[half:]) if unit in mixed[:half] else (mixed[half:], mixed[:half])
            parts[unit] = mine
            parts[one_of(other)] = other
        stages.append(_stage(parts, chance))
    return stages


def _stage(parts: dict[int, np.ndarray], chance: np.ndarray) -> Stage:
    units = list(parts)
    sums = np.array([chance[part].sum() for part in parts.values()])
    sizes, count = np.array([len(part) for part in parts.values()], np.float64), len(chance)
    squares = float((sizes ** 2).sum())
    spread = (squares - count) / (count ** 2 - squares) if len(units) > 1 else math.nan
    return Stage(tuple(units), chance[units], sums, spread if len(units) < count else 0.0)


def estimate(values: np.ndarray, stage: Stage) -> tuple[float, float]:
    """The sum over all samples by those of a stage, and half the width of its 95 % interval.

    The half width is 0 if all samples were drawn, and NaN with fewer than `LEAST` of them.

    Args:
        values: What each sample of the stage adds, finite, ``(samples,)``.
    """
    total = float(stage.parts @ (values / stage.chances))
    if stage.spread == 0:
        return total, 0.0
    if len(values) < LEAST:
        return total, math.nan
    freedom = 1 / float(stage.parts @ stage.parts) - 1  # that of as many parts of one probability
    return total, t_quantile(freedom) * math.sqrt(stage.spread) * deviation(values, stage)


def deviation(values: np.ndarray, stage: Stage) -> float:
    """The standard deviation of the estimates of the sum that each sample gives by itself; 0 with a single one."""
    scaled = values / stage.chances
    return math.sqrt(float(stage.parts @ (scaled - stage.parts @ scaled) ** 2))


def t_quantile(freedom: float) -> float:
    """Half the width of the 95 % interval of Student's t with so many degrees of freedom, at least 1.

    To 1 % from 3 degrees on: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if freedom < 1.5:
        return 12.706
    if freedom < 2.5:
        return 4.303
    z = _NORMAL
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
             (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160)
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
