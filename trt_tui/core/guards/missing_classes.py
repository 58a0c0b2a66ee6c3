"""The guard against classes that occur in judged samples but in no calibration sample.

Rule: it checks each array of integer labels in which a class occurs in at least two judged samples on average. Negative
numbers such as -1, and 255 beside small numbers, are not classes. The guard warns about missing classes if there are at
least two calibration samples per class. With fewer samples, the limit is the number of classes that a random draw of
that many samples could miss. It is the sum of (1 - share)^n over the classes, plus two of its standard deviations.

Source: a property of only one class (its brightest texture, its rare token) has no effect on any range if none of its
samples calibrates. The draw is binomial. With a thousand classes and 64 samples most classes are missing, and that
alone means nothing.
"""

import math
from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning, LabelClassFacts
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text


class MissingClassesGuard(Guard):
    """The guard that warns if classes of the judged samples have no calibration sample."""

    name = "missing-classes"
    description = "classes that no calibration sample has"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.no_classes_reason or not guard_facts.class_facts:
            return guard_facts.no_classes_reason or "no labels that name classes"
        return "" if guard_facts.range_facts is not None else "no layer needs a range"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for class_facts in guard_facts.class_facts or ():
            missing = sorted(class_facts.judged_counts.keys() - class_facts.calibration_counts.keys())
            if missing and (2 * len(class_facts.judged_counts) <= class_facts.calibration_samples
                            or len(missing) > _estimate_classes_missed_by_chance(class_facts)):
                yield (self.make_warning(
                    f"{len(missing)} of "
                    f"{len(class_facts.judged_counts)} classes in "
                    f"{escape_hidden_characters(class_facts.label_array)} have no calibration sample",
                    f"{counted_noun_text(class_facts.calibration_samples, 'sample')} calibrate, none of class "
                    f"{name_list_text([str(label) for label in missing])}: values that occur only in these classes are "
                    "not in the ranges",
                    "Give --calib-data with every class."))


def _estimate_classes_missed_by_chance(class_facts: LabelClassFacts) -> float:
    """Returns the number of classes that a random draw of the calibration samples could miss."""
    missed = [(1 - min(1.0, count / class_facts.judged_samples))**class_facts.calibration_samples
              for count in class_facts.judged_counts.values()]
    return sum(missed) + 2 * math.sqrt(sum(share * (1 - share) for share in missed))
