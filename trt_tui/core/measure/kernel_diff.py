"""The kernels that differ between two configs, by their engines or their previews."""

from dataclasses import dataclass
from typing import Any

from trt_tui.core.engines.preview import Kernel, Preview, find_added_kernels, list_kernels
from trt_tui.core.measure.results import ConfigResults
from trt_tui.formatting import counted_noun_text


@dataclass(frozen=True)
class KernelDiff:
    """The kernels that are removed and added from one config to another.

    Attributes:
        source: The origin of both kernel lists: the builder of both engines, or the preview of both configs.
            kernels_before, kernels_after: The number of kernels of the first and of the second config. removed, added:
            The kernels of the first config alone, and of the second alone.
    """

    source: str
    kernels_before: int
    kernels_after: int
    removed: tuple[Kernel, ...]
    added: tuple[Kernel, ...]

    @property
    def description(self) -> str:
        """The kernel counts in one line: ``kernels (preview RTX 1.7, SM89): 5 and 7, 1 lost, 3 gained``."""
        return (f"kernels ({self.source}): {self.kernels_before} and {self.kernels_after}, {len(self.removed)} lost, "
                f"{len(self.added)} gained")

    def diff_lines(self, max_kernels: int) -> list[str]:
        """Returns one line for each removed (``-``) and added (``+``) kernel.

        Args:
            max_kernels: The maximum number of removed kernels, and of added kernels.
        """
        lines: list[str] = []
        for sign, kernels in (("-", self.removed), ("+", self.added)):
            lines += [f"{sign} {kernel.description}" for kernel in kernels[:max_kernels]]
            if len(kernels) > max_kernels:
                lines.append(f"{sign} {counted_noun_text(len(kernels) - max_kernels, 'more kernel')}")
        return lines

    def to_record(self) -> dict[str, Any]:
        return {
            "source": self.source, "before": self.kernels_before, "after": self.kernels_after,
            "lost": [kernel.description for kernel in self.removed],
            "gained": [kernel.description for kernel in self.added]
        }


def diff_kernels(first_results: ConfigResults, second_results: ConfigResults) -> KernelDiff | None:
    """Returns the kernels that differ between two configs; None if the kernels of either are unknown.

    The engines as built are compared if both list their layers, and the previews if not.
    """
    first_engine, second_engine = first_results.engine_result, second_results.engine_result
    if (first_engine is not None and second_engine is not None and first_engine.engine_report is not None
            and second_engine.engine_report is not None and first_engine.builder_name == second_engine.builder_name):
        return _diff_previews(
            f"as built, {first_engine.builder_name}",
            *(Preview(kernels=list_kernels(engine_report))
              for engine_report in (first_engine.engine_report, second_engine.engine_report)))
    before, after = first_results.preview, second_results.preview
    if before is None or after is None or before.refusal is not None or after.refusal is not None:
        return None
    return _diff_previews(f"preview {after.builder_text}", before, after)


def _diff_previews(source: str, before: Preview, after: Preview) -> KernelDiff:
    return KernelDiff(source, len(before.kernels), len(after.kernels), tuple(find_added_kernels(after, before)),
                      tuple(find_added_kernels(before, after)))
