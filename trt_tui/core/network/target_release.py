"""The TensorRT release that a config is meant for, and the releases that a known defect affects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from trt_tui.errors import InputError

TENSORRT, TENSORRT_RTX = "TensorRT", "TensorRT-RTX"

_RELEASE_PATTERN = re.compile(r"(?P<rtx>rtx[-:]?)?(?P<numbers>\d{1,4}(?:\.\d{1,5}){0,3})?", re.IGNORECASE)
_NUMBERS_PATTERN = re.compile(r"\d{1,4}(?:\.\d{1,5}){0,3}")
_Version: TypeAlias = tuple[int, ...]
_MAX_PARTS = 4
_MAX_PART = 10**6


def _oldest_version(text: str, missing_part: int = 0) -> _Version:
    """Returns the oldest version that a text includes: "10.14" starts with 10.14.0.0."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:_MAX_PARTS])
    return (*numbers, *(missing_part,) * (_MAX_PARTS - len(numbers)))


def _newest_version(text: str) -> _Version:
    """Returns a version that no version is newer than which a text includes: "10.14" includes each 10.14.x.y."""
    return _oldest_version(text, _MAX_PART)


@dataclass(frozen=True)
class TensorRTRelease:
    """A release of TensorRT or TensorRT-RTX.

    Attributes:
        product: `TENSORRT` or `TENSORRT_RTX`.
        version: The version with one to four numbers. "10.14" stands for all releases 10.14.x. "" if it is unknown.
    """

    product: str
    version: str

    @property
    def title(self) -> str:
        return f"{self.product} {self.version}".rstrip()

    @property
    def family(self) -> str:
        """The name of the release among those of a bundle: "8.6", "10", "11" or "rtx"; "" if it is another one."""
        if self.product == TENSORRT_RTX:
            return "rtx"
        numbers = self.version.split(".")
        return {"10": "10", "11": "11"}.get(numbers[0], "8.6" if numbers[:2] == ["8", "6"] else "")


def parse_release(text: str) -> TensorRTRelease:
    """Returns the release of a text such as "10.14", "10.14.1.48", "rtx" or "rtx1.5".

    Raises:
        InputError: The text is not a valid release.
    """
    match = _RELEASE_PATTERN.fullmatch(text.strip())
    if match is None or match["numbers"] is None and match["rtx"] is None:
        raise InputError(f"{text} is not a TensorRT release", "a release has one to four numbers with points between",
                         "Write it like 10.14, 10.14.1.48, rtx or rtx1.5.")
    return TensorRTRelease(TENSORRT_RTX if match["rtx"] else TENSORRT, match["numbers"] or "")


def installed_release(builder_name: str, version: str) -> TensorRTRelease:
    """Returns the release of a builder ("tensorrt", "tensorrt-rtx") from its version, such as "10.7.0.post1"."""
    match = _NUMBERS_PATTERN.match(version)
    return TensorRTRelease(TENSORRT_RTX if builder_name == "tensorrt-rtx" else TENSORRT,
                           match[0] if match is not None else "")


@dataclass(frozen=True)
class AffectedReleases:
    """The releases of TensorRT or TensorRT-RTX that a known defect affects, as far as its source tells.

    Attributes:
        product: `TENSORRT` or `TENSORRT_RTX`.
        observed: The oldest and the newest release in which the defect was observed; None if the source names none.
        introduced: The first release with the defect; None if it is unknown.
        fixed: The first release without the defect; None if it is unknown, or if there is none.
    """

    product: str = TENSORRT
    observed: tuple[str, str] | None = None
    introduced: str | None = None
    fixed: str | None = None

    def affects(self, release: TensorRTRelease) -> bool | None:
        """Returns True if the source tells that a release has the defect, False if it has not, None if that is unknown.

        A release without a patch number stands for its latest patch. If only earlier patches have the defect, the
        answer is None.
        """
        if release.product != self.product:
            return False
        if not release.version:
            return None
        oldest, newest = _oldest_version(release.version), _newest_version(release.version)
        if self.fixed is not None and oldest >= _oldest_version(self.fixed):
            return False
        if self.introduced is not None and newest < _oldest_version(self.introduced):
            return False
        is_newest_known = (newest < _oldest_version(self.fixed) if self.fixed is not None
                           else self.observed is not None and newest[:2] <= _newest_version(self.observed[1])[:2])
        return True if self.includes(release) and is_newest_known else None

    def includes(self, release: TensorRTRelease) -> bool:
        """Returns True if the source names some version of a release, as "10" includes 10.0.0, or no release at all."""
        if self == AffectedReleases(self.product):
            return release.product == self.product
        first = self.introduced or (self.observed[0] if self.observed is not None else None)
        last = self.fixed or (self.observed[1] if self.observed is not None else None)
        return (release.product == self.product and bool(release.version) and first is not None and last is not None
                and _newest_version(release.version) >= _oldest_version(first)
                and _oldest_version(release.version) <= _newest_version(last))

    @property
    def releases_text(self) -> str:
        """The affected releases for users, such as "since TensorRT 10.8, seen in 10.11.0.33"."""
        observed_text = " to ".join(dict.fromkeys(self.observed)) if self.observed is not None else ""
        parts = [f"since {self.product} {self.introduced}"] if self.introduced is not None else (
            [f"in {self.product} {observed_text}"] if observed_text else [f"in {self.product}, releases unknown"])
        if self.introduced is not None and observed_text not in ("", self.introduced):
            parts.append(f"seen in {observed_text}")
        if self.fixed is not None:
            parts.append(f"fixed in {self.fixed}")
        return ", ".join(parts)


@dataclass(frozen=True)
class BuildTarget:
    """The release and the GPU that engines are built for, as far as they are known.

    Attributes:
        release: The TensorRT release; None if it is unknown.
        compute_capability: The compute capability of the GPU; None if it is unknown.
    """

    release: TensorRTRelease | None = None
    compute_capability: tuple[int, int] | None = None
