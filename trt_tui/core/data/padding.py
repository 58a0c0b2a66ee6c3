"""Feeds with fewer samples than the fixed batch of a network: copies of the last sample fill them up for an execution.

Everywhere else such a feed has only the rows of its samples: inputs, labels and outputs. No count, error or metric
includes the copies.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BatchPadding:
    """The padding of the last feed of a network with a fixed batch.

    Attributes:
        batch_size: Rows of a full feed.
        array_names: Names of the arrays with one row per sample.
    """

    batch_size: int
    array_names: frozenset[str]

    def pad_feed(self, feed: Mapping[str, np.ndarray],
                 extra_names: Collection[str] = ()) -> tuple[Mapping[str, np.ndarray], int | None]:
        """Returns a full feed, and the number of its samples; None if the feed was full.

        Args:
            extra_names: Names of more inputs with one row per sample.
        """
        rows = next((len(array) for name, array in feed.items() if name in self.array_names and array.ndim), 0)
        if not 0 < rows < self.batch_size:
            return feed, None
        return {name: self.pad_rows(array) if array.ndim and len(array) == rows and (
            name in self.array_names or name in extra_names) else array for name, array in feed.items()}, rows

    def pad_rows(self, array: np.ndarray) -> np.ndarray:
        """Returns an array with its last row repeated up to a full batch."""
        missing = self.batch_size - len(array)
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array

    def remove_padding(self, array: np.ndarray, sample_count: int) -> np.ndarray:
        """Returns the rows of the samples of an output. An output whose first axis is not the batch is unchanged."""
        is_batch = isinstance(array, np.ndarray) and array.ndim > 0 and len(array) == self.batch_size
        return array[:sample_count] if is_batch else array
