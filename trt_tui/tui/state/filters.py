"""What a filter finds: its terms, each of which a group must meet.

| term | meets it |
| --- | --- |
| ``text`` | name, path or operator hold it, in any case |
| ``/regex/`` | it is found in name, path or operator, in any case |
| ``share>1%`` (``>=``, ``<``, ``<=``) | its share of the judged error; never where that is not measured |
| ``prec:int8`` | it is asked to run in this precision; ``prec:file``: as in the file, ``prec:kept``: by rule |
| ``op:conv`` | its operator holds it |
| ``!term`` | it does not meet the term |
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_SHARE = re.compile(r"share(>=|<=|>|<)(\d+(?:\.\d+)?|\.\d+)(%?)", re.IGNORECASE)
_TERM = re.compile(r"!?/(?:[^/\\]|\\.)*/(?=\s|$)|\S+")
_LONGEST = 200
"""A pattern longer than this finds nothing: it is looked for at each key that is typed."""


@dataclass(frozen=True)
class Subject:
    """A group as a filter sees it.

    Attributes:
        text: Names, path and operator.
        share: Its share of the judged error, None where that is not measured.
        asked: The precision that it is asked to run in.
        kept: Whether it is kept in that by rule.
    """

    group: Group
    text: str
    share: float | None
    asked: Precision
    kept: bool


Test = Callable[[Subject], bool]


@dataclass(frozen=True)
class Filter:
    """The terms of a filter.

    Attributes:
        wrong: What is wrong with it, "" where nothing is; the terms that are wrong are not among ``tests``.
    """

    tests: tuple[Test, ...]
    wrong: str = ""

    def finds(self, subject: Subject) -> bool:
        """Whether a group meets every term."""
        return all(test(subject) for test in self.tests)


def parse_filter(text: str) -> Filter | None:
    """The filter of what was typed; None where nothing was."""
    tests, wrong = [], ""
    for term in _TERM.findall(text):
        word, negated = (term[1:], True) if term.startswith("!") and len(term) > 1 else (term, False)
        try:
            test = _test(word)
        except ValueError as error:
            wrong = wrong or str(error)
            continue
        tests.append((lambda subject, test=test: not test(subject)) if negated else test)
    return Filter(tuple(tests), wrong) if tests or wrong else None


def _test(word: str) -> Test:
    if len(word) > 1 and word.startswith("/") and word.endswith("/"):
        if len(word) > _LONGEST:
            raise ValueError(f"a pattern has at most {_LONGEST} characters")
        try:
            pattern = re.compile(word[1:-1], re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"{word}: {error}") from None
        return lambda subject: pattern.search(subject.text) is not None
    if match := _SHARE.fullmatch(word):
        compare, bound = _COMPARE[match[1]], float(match[2]) / (100 if match[3] else 1)
        return lambda subject: subject.share is not None and compare(subject.share, bound)
    lowered = word.lower()
    if lowered.startswith("prec:"):
        wanted = lowered.removeprefix("prec:")
        if wanted not in (known := (*(one.value for one in Precision), "kept")):
            raise ValueError(f"prec: takes {', '.join(known)}")
        return lambda subject: subject.kept if wanted == "kept" else subject.asked.value == wanted
    if lowered.startswith("op:"):
        wanted = lowered.removeprefix("op:")
        return lambda subject: wanted in subject.group.operator.lower()
    if lowered.startswith("share"):
        raise ValueError("share is compared as in share>1%")
    return lambda subject: lowered in subject.text.lower()
