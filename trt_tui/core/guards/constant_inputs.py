"""Judged samples that are all the same.

Rule: it warns if there are two samples or more, and every input holds the same values in each of the up to 64 samples
that are looked at.

Source: with ones in place of images the bundled network's INT8 passes, and each sample repeats what the first has said.
One input that never changes, such as a mask, is common and no reason to warn.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text


class ConstantInputsGuard(Guard):
    """Warns if the judged samples are copies of one sample."""

    name = "constant-inputs"
    description = "judged samples that are all the same"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Returns the reason why the facts do not tell it; "" if they do."""
        if guard_facts.has_random_inputs:
            return "random inputs"
        return "" if guard_facts.equal_sample_count is not None else "the samples were not compared"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        """Yields the alarm if all samples are the same."""
        if guard_facts.equal_sample_count:
            yield self.make_warning(
                f"all {counted_noun_text(guard_facts.equal_sample_count, 'judged sample')} are the same",
                "ranges and errors of a single input say nothing about other inputs, and a PASS on it proves nothing",
                    "Give samples that differ from each other, as production feeds them.")
