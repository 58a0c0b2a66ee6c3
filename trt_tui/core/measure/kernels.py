"""Which kernels one config's engine has and another's has not."""

from dataclasses import dataclass
from typing import Any

from trt_tui.core.engines.preview import Kernel, Preview, gained, kernels_of
from trt_tui.core.measure.comparison import Measured
from trt_tui.words import plural


@dataclass(frozen=True)
class KernelChange:
    """What becomes of the kernels from one config to another.

    Attributes:
        source: Who tells: the builder of both engines, or the preview of both.
        before, after: How many kernels the two have.
        lost, gained: Those of the first alone, and those of the other alone.
    """

    source: str
    before: int
    after: int
    lost: tuple[Kernel, ...]
    gained: tuple[Kernel, ...]

    @property
    def said(self) -> str:
        """In a line: ``kernels (preview RTX 1.7, SM89): 5 and 7, 1 lost, 3 gained``."""
        return (f"kernels ({self.source}): {self.before} and {self.after}, {len(self.lost)} lost, "
                f"{len(self.gained)} gained")

    def lines(self, most: int) -> list[str]:
        """Each kernel with ``-`` or ``+`` before it, of each at most so many."""
        told: list[str] = []
        for sign, kernels in (("-", self.lost), ("+", self.gained)):
            told += [f"{sign} {kernel.said}" for kernel in kernels[:most]]
            if len(kernels) > most:
                told.append(f"{sign} {plural(len(kernels) - most, 'more kernel')}")
        return told

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"source": self.source, "before": self.before, "after": self.after,
                "lost": [kernel.said for kernel in self.lost], "gained": [kernel.said for kernel in self.gained]}


def kernel_change(one: Measured, other: Measured) -> KernelChange | None:
    """By the engines as built, if both list their layers, else by the previews; None where neither is known of both."""
    first, second = one.engine, other.engine
    if first is not None and second is not None and first.report is not None and second.report is not None and (
            first.backend, first.quick) == (second.backend, second.quick):
        return _change(f"as built, {first.backend}", *(Preview(kernels=kernels_of(report))
                                                       for report in (first.report, second.report)))
    before, after = one.preview, other.preview
    if before is None or after is None or before.refused is not None or after.refused is not None:
        return None
    return _change(f"preview {after.name}", before, after)


def _change(source: str, before: Preview, after: Preview) -> KernelChange:
    return KernelChange(source, len(before.kernels), len(after.kernels), tuple(gained(after, before)),
                        tuple(gained(before, after)))
