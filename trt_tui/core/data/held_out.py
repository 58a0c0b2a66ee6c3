"""The choice of the samples that a search does not use, so that its result can be checked on them."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.formatting import counted_noun_text

HELD_OUT_SHARE = 0.25
"""The share of the samples that a search does not use."""

MIN_SEARCH_SAMPLES, MIN_HELD_OUT_SAMPLES = 32, 16
"""The minimum numbers of samples for the choices of a search, and of held-out samples. If either is not reached, no
samples are held out.

Together they are three quarters of 64: of 64 samples without separate calibration samples, a quarter calibrates."""

_DRAW_SEED = 0
"""The seed of the draw. It is fixed, so that the same data are always divided in the same way."""


@dataclass(frozen=True)
class HeldOutChoice:
    """The feeds that a search does not use.

    Attributes:
        feed_indices: Indices of whole feeds, ascending; () if nothing is held out.
        refusal_reason: The reason why nothing is held out; "" if something is.
    """

    feed_indices: tuple[int, ...] = ()
    refusal_reason: str = ""


def choose_held_out_feeds(samples: Samples, calibrating_feeds: Collection[int] = ()) -> HeldOutChoice:
    """Draws feeds with about a quarter of the samples, at least `MIN_HELD_OUT_SAMPLES` samples.

    Whole feeds are drawn, because fixed batches cannot be divided.

    Args:
        calibrating_feeds: Feeds with samples that also calibrate. They are never held out, because ranges were chosen
            on them.
    """
    counts = [samples.count_samples_of_feed(index) for index in range(len(samples))]
    total = sum(counts)
    count_text = counted_noun_text(total, "judged sample")
    if total < MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES:
        return HeldOutChoice(refusal_reason=f"{count_text} are fewer than {MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES}")
    goal, held_out, row_count = max(HELD_OUT_SHARE * total, MIN_HELD_OUT_SAMPLES), list[int](), 0
    for index in np.random.default_rng(_DRAW_SEED).permutation(len(samples)).tolist():
        if row_count >= goal:
            break
        if index not in calibrating_feeds and total - row_count - counts[index] >= MIN_SEARCH_SAMPLES:
            held_out.append(index)
            row_count += counts[index]
    if row_count < MIN_HELD_OUT_SAMPLES:
        return HeldOutChoice(refusal_reason=(
            "too few of the judged samples are not calibration samples too" if calibrating_feeds else
            f"{count_text} in {len(samples)} batch{'' if len(samples) == 1 else 'es'} cannot be divided"))
    return HeldOutChoice(tuple(sorted(held_out)))


def find_shared_feeds(samples: Samples, other_samples: Samples) -> frozenset[int]:
    """Returns the indices of the feeds that contain a sample which the other samples contain too.

    Samples are compared by the values of all inputs. All data are read once. Raises the errors of `Samples.read_feed`.
    """
    other_hashes = {digest for index in range(len(other_samples)) for digest in _hash_samples(other_samples, index)}
    return frozenset(index for index in range(len(samples))
                     if not other_hashes.isdisjoint(_hash_samples(samples, index)))


def _hash_samples(samples: Samples, feed_index: int) -> Iterator[bytes]:
    """Yields the hash of the inputs of each sample of a feed. Arrays that are not divided into samples belong to every
    sample."""
    feed = samples.read_feed(feed_index)
    for row in range(samples.count_samples_of_feed(feed_index)):
        digest = hashlib.sha256()
        for name, array in sorted(feed.items()):
            values = array[row] if name in samples.per_sample_array_names else array
            content = repr(values.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(
                values).tobytes()
            digest.update(f"{name} {array.dtype} {np.shape(values)}".encode() + content)
        yield digest.digest()
