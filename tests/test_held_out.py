"""The samples that a search does not use, so that its result can be checked on them."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.driven import save_mlp
from trt_tui.core.data.held_out import choose_held_out_feeds, find_shared_feeds
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.target_outcome import (
    HeldOutResult,
    HeldOutValue,
    Outcome,
    TargetOutcome,
    TargetResult,
)
from trt_tui.core.network.network import open_network


@dataclass
class Feeds:
    """Samples in feeds of given sizes."""

    counts: tuple[int, ...]

    def __len__(self):
        return len(self.counts)

    def count_samples_of_feed(self, index):
        return self.counts[index]


@pytest.mark.parametrize(("counts", "requested", "held_out"), [
    ((4,) * 11, False, 0), ((4,) * 12, False, 16), ((1,) * 64, False, 16), ((8,) * 12, False, 24),
    ((1,) * 400, False, 100), ((64,), False, 0), ((32, 32), False, 32), ((48, 8), False, 0),
    ((4,) * 4, True, 4), ((1, 1), True, 1), ((5,), True, 0)])
def test_about_a_quarter_is_held_out_in_whole_batches(counts, requested, held_out):
    choice = choose_held_out_feeds(Feeds(counts), is_requested=requested)
    assert sum(counts[index] for index in choice.feed_indices) == held_out
    assert bool(choice.refusal_reason) is (held_out == 0)
    assert choice == choose_held_out_feeds(Feeds(counts), is_requested=requested), "the seed is fixed"


def test_feeds_that_calibrate_are_never_held_out():
    choice = choose_held_out_feeds(Feeds((1,) * 80), range(60))
    assert set(choice.feed_indices) == set(range(60, 80))
    assert choose_held_out_feeds(Feeds((1,) * 80), range(66)).refusal_reason.startswith("too few")


def test_shared_samples_are_found_in_other_batches_and_files(tmp_path):
    options = save_mlp(tmp_path, samples=16)
    inputs = open_network(options.model).inputs
    values = np.load(options.data)["x"]
    np.savez(tmp_path / "some.npz", x=values[[13, 1, 2]])
    samples = load_samples(options.data, inputs, batch=4)
    assert find_shared_feeds(samples, load_samples(str(tmp_path / "some.npz"), inputs, batch=1)) == {0, 3}
    np.savez(tmp_path / "none.npz", x=values + 1)
    assert not find_shared_feeds(samples, load_samples(str(tmp_path / "none.npz"), inputs))


@pytest.mark.parametrize(("before", "passes", "after"), [
    (Outcome.PASS, True, Outcome.PASS), (Outcome.PASS, False, Outcome.UNCERTAIN_PASS),
    (Outcome.UNCERTAIN_PASS, False, Outcome.UNCERTAIN_PASS), (Outcome.FAIL, False, Outcome.FAIL)])
def test_a_miss_on_held_out_samples_turns_a_pass_into_a_doubt(before, passes, after):
    value = HeldOutValue("sqnr>=20", "20.4 dB", "19.9 to 21.0 dB", "19.1 dB", "18.2 to 20.0 dB")
    held_out = HeldOutResult(TargetResult(passes, -0.9 if not passes else 0.4), 16, 48, (value,))
    outcome = TargetOutcome(before, ("a reason",)).with_doubt(held_out.miss_text)
    assert outcome.outcome is after
    assert ("16 held-out samples" in outcome.text and "~19.1 dB (18.2 to 20.0 dB)" in outcome.text) is (
        before.passes and not passes)
