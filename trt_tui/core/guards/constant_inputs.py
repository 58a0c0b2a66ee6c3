"""Judged samples that are all the same.

Rule: it warns if there are two samples or more, and every input holds the same values in each of the up to 64 samples
that are looked at.

Source: with ones in place of images the bundled network's INT8 passes, and each sample repeats what the first has said.
One input that never changes, such as a mask, is common and no reason to warn.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import plural


class ConstantInputs(Guard):
    """Warns if the judged samples are copies of one sample."""

    name = "constant-inputs"
    about = "judged samples that are all the same"

    def lacks(self, facts: Facts) -> str:
        """Returns the reason why the facts do not tell it; "" if they do."""
        if facts.random:
            return "random inputs"
        return "" if facts.equal_samples is not None else "the samples were not looked at"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields the alarm if all samples are the same."""
        if facts.equal_samples:
            yield self.alarm(f"all {plural(facts.equal_samples, 'judged sample')} are the same",
                             "ranges and errors of a single input say nothing about other inputs, and a PASS on it is "
                             "no proof", "Give samples that differ from each other, as production feeds them.")
