"""The guard against outputs that depend on the other samples of the batch.

Rule: FP32 outputs of up to 4 samples are computed in the batch in use, and again alone (in a batch of copies if the
network has a fixed batch). The guard warns if the SQNR of an output between the two is below 80 dB.

Source: another batch only changes the order of sums in FP32, which leaves 134 dB and more in the networks of the tests
(residual network, U-Net, BERT, ViT). Subtracting the mean of the batch from the outputs leaves 0 dB. Accuracy that was
measured at one batch says nothing about another then, and the copies that fill up a fixed batch change the results too.
"""

import math
from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters

MIN_SQNR_DB = 80.0


class BatchDependenceGuard(Guard):
    """The guard that warns if the outputs of a sample depend on the other samples of its batch."""

    name = "batch-dependent"
    description = "FP32 of single samples against the batch in use"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return "" if guard_facts.batch_sqnr_db is not None else guard_facts.no_batch_reason or "it was not measured"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for name, sqnr_db in (guard_facts.batch_sqnr_db or {}).items():
            if sqnr_db < MIN_SQNR_DB:
                difference = f"has an SQNR of {sqnr_db:.1f} dB" if math.isfinite(sqnr_db) else "is not finite"
                yield self.make_warning(
                    f"{escape_hidden_characters(name)} depends on the other samples of the batch",
                    f"FP32 of a sample alone {difference} against FP32 of the same sample in a batch of "
                    f"{guard_facts.compared_batch}; rounding alone leaves over {MIN_SQNR_DB:.0f} dB",
                    "Measure at the batch of production (--batch), or export the network in inference mode.")
