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

from trt_tui.core.guards.facts import ClassFacts, Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.words import first_few, plural, visible


class MissingClasses(Guard):
    """See the module's docstring."""

    name = "missing-classes"
    about = "classes that no calibrating sample has"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        return facts.no_classes or ("" if facts.classes else "no labels that name classes")

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        for one in facts.classes or ():
            missing = sorted(one.judged.keys() - one.calibrating.keys())
            if missing and (2 * len(one.judged) <= one.calibrating_samples or len(missing) > _by_chance(one)):
                yield self.alarm(
                    f"{len(missing)} of {len(one.judged)} classes in {visible(one.label)} have no calibrating sample",
                    f"{plural(one.calibrating_samples, 'sample')} calibrate, none of them of "
                    f"{first_few([str(label) for label in missing])}: what these alone have sets no range",
                    "Give --calib-data that have every class.")


def _by_chance(one: ClassFacts) -> float:
    """How many classes a random draw of the calibrating samples might miss."""
    missed = [(1 - min(1.0, count / one.judged_samples)) ** one.calibrating_samples for count in one.judged.values()]
    return sum(missed) + 2 * math.sqrt(sum(share * (1 - share) for share in missed))
