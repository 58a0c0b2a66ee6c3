"""The guard against judged samples that are all equal.

Rule: it warns if there are at least two samples, and every input is equal in all compared samples, up to 64.

Source: with ones instead of images, INT8 of the bundled network passes, and every sample repeats the result of the
first. A single input that never changes, such as a mask, is common and causes no warning.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import counted_noun_text


class ConstantInputsGuard(Guard):
    """The guard that warns if the judged samples are copies of one sample."""

    name = "constant-inputs"
    description = "judged samples that are all the same"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.has_random_inputs:
            return "random inputs"
        return "" if guard_facts.equal_sample_count is not None else "the samples were not compared"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        if guard_facts.equal_sample_count:
            yield self.make_warning(
                f"all {counted_noun_text(guard_facts.equal_sample_count, 'judged sample')} are the same",
                "ranges and errors of a single input say nothing about other inputs, and a PASS on it proves nothing",
                    "Give samples that differ from each other, as production feeds them.")
