"""The row filter: parsing of its text into terms. A fusion group matches if it meets every term.

==================  ================================================================================
term                condition
==================  ================================================================================
``text``            name, path or operator contains the text, in any case
``/regex/``         name, path or operator contains a match, in any case
``share>1%``        the error share of the group (also ``>=``, ``<``, ``<=``); false if not measured
``prec:int8``       the requested precision; ``prec:file``: that of the file, ``prec:kept``: by a rule
``op:conv``         the operator contains the text
``!term``           the term is not met
==================  ================================================================================
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_SHARE_PATTERN = re.compile(r"share(>=|<=|>|<)(\d+(?:\.\d+)?|\.\d+)(%?)", re.IGNORECASE)
_TERM_PATTERN = re.compile(r"!?/(?:[^/\\]|\\.)*/(?=\s|$)|\S+")
_MAX_PATTERN_CHARACTERS = 200
"""The maximum length of a pattern. A longer pattern is rejected, because the filter runs at each key press."""


@dataclass(frozen=True)
class FilterItem:
    """The properties of a fusion group that a filter tests.

    Attributes:
        search_text: Names, path and operator of the group.
        share: The error share of the group; None if it is not measured.
        requested: The requested precision.
        is_kept: True if a keep rule fixes the precision.
    """

    group: FusionGroup
    search_text: str
    share: float | None
    requested: Precision
    is_kept: bool


FilterTest = Callable[[FilterItem], bool]


@dataclass(frozen=True)
class RowFilter:
    """A parsed row filter, which consists of one test for each valid term.

    Attributes:
        error_text: The error in the first invalid term; "" if all terms are valid.
    """

    tests: tuple[FilterTest, ...]
    error_text: str = ""

    def matches_all_terms(self, item: FilterItem) -> bool:
        return all(test(item) for test in self.tests)


def parse_filter(text: str) -> RowFilter | None:
    """Returns the filter for a typed text; None if the text has no terms."""
    tests, error_text = [], ""
    for term in _TERM_PATTERN.findall(text):
        bare_term, negated = (term[1:], True) if term.startswith("!") and len(term) > 1 else (term, False)
        try:
            test = _parse_filter_term(bare_term)
        except ValueError as error:
            error_text = error_text or str(error)
            continue
        tests.append((lambda item, test=test: not test(item)) if negated else test)
    return RowFilter(tuple(tests), error_text) if tests or error_text else None


def _parse_filter_term(term: str) -> FilterTest:
    if len(term) > 1 and term.startswith("/") and term.endswith("/"):
        if len(term) > _MAX_PATTERN_CHARACTERS:
            raise ValueError(f"a pattern has at most {_MAX_PATTERN_CHARACTERS} characters")
        try:
            pattern = re.compile(term[1:-1], re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"{term}: {error}") from None
        return lambda item: pattern.search(item.search_text) is not None
    if match := _SHARE_PATTERN.fullmatch(term):
        compare, limit = _COMPARISONS[match[1]], float(match[2]) / (100 if match[3] else 1)
        return lambda item: item.share is not None and compare(item.share, limit)
    lowered = term.lower()
    if lowered.startswith("prec:"):
        value = lowered.removeprefix("prec:")
        if value not in (allowed := (*(precision.value for precision in Precision), "kept")):
            raise ValueError(f"prec: takes {', '.join(allowed)}")
        return lambda item: item.is_kept if value == "kept" else item.requested.value == value
    if lowered.startswith("op:"):
        value = lowered.removeprefix("op:")
        return lambda item: value in item.group.operator.lower()
    if lowered.startswith("share"):
        raise ValueError("share is compared as in share>1%")
    return lambda item: lowered in item.search_text.lower()
