"""Classes that the judged samples have and no calibrating one does.

Rule: for each array of labels that names classes (integers, each of them in two judged samples or more on average; -1
and the like, and 255 beside small numbers, name none), it warns where classes are missing and there are at least two
calibrating samples for each class, or where more are missing than a random draw of so many samples would miss:
sum of (1 - share)^n over the classes, and two of its standard deviations.

Source: what only one class has (its brightest texture, its rare token) sets no range if none of its samples calibrates.
The draw is binomial; with a thousand classes and 64 samples most are missing, and that alone says nothing.
"""

import math
from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning, LabelClassFacts
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text


class MissingClassesGuard(Guard):
    """See the module's docstring."""

    name = "missing-classes"
    description = "classes that no calibration sample has"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        """Why these facts tell it nothing."""
        return guard_facts.no_classes_reason or ("" if guard_facts.class_facts else "no labels that name classes")

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
    """How many classes a random draw of the calibrating samples might miss."""
    missed = [(1 - min(1.0, count / class_facts.judged_samples))**class_facts.calibration_samples
              for count in class_facts.judged_counts.values()]
    return sum(missed) + 2 * math.sqrt(sum(share * (1 - share) for share in missed))
