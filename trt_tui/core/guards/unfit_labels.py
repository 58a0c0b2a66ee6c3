"""The guard against class labels that do not fit the classes of the network's output.

Rule: it checks integer labels of a classifier, or of each pixel if the output has classes in its second axis. The guard
warns about a label that is negative or at least the number of classes. -1 and -100 are not labels, and neither is 255
beside small numbers. An array counts as class labels if at least half of its labels fit and labels repeat; other arrays
hold numbers of samples or quantities. One-hot rows must have as many columns as there are classes.

Source: PyTorch ignores the label -100, and Cityscapes and Pascal VOC mark ignored pixels with 255. A metric counts a
label that no output can have as an error of every run, so that the baseline is too low and hides losses. Labels that
begin at 1 make nearly every sample wrong.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.formatting import escape_hidden_characters, name_list_text


class UnfitLabelsGuard(Guard):
    """The guard that warns if labels name classes that the output does not have."""

    name = "unfit-labels"
    description = "class labels against the classes of the output"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        return "" if guard_facts.unfit_labels is not None else "no labels, or no output with classes"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for labels in guard_facts.unfit_labels or ():
            array, output = escape_hidden_characters(labels.label_array), escape_hidden_characters(labels.output)
            summary = f"labels in {array} do not fit the {labels.class_count} classes of {output}"
            if labels.one_hot_size is not None:
                yield self.make_warning(summary, f"a one-hot row there has {labels.one_hot_size} columns",
                                        "Give labels of the classes that the network was trained on.")
                continue
            starts_at_one = labels.outside == (labels.class_count, ) and not labels.has_class_0
            yield self.make_warning(
                summary, f"{name_list_text(list(map(str, labels.outside)), 5)} occur there, and classes are 0 to "
                f"{labels.class_count - 1}" + ("; class 0 never occurs, as if labels begin at 1" * starts_at_one),
                "Subtract 1 from the labels." if starts_at_one else
                "Correct the labels, or leave these samples out: no run can be right about them.")
