"""A comparison as JUnit's XML, as the servers that run tests read it: a case for each run, stage and engine."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from trt_tui.words import visible

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        failure: Why it fails, "" where it does not.
        error: Why it could not be judged, "" where it could.
        text: Its figures.
    """

    name: str
    failure: str = ""
    error: str = ""
    text: str = ""


def cases_of(comparison: Mapping[str, Any], failures: Mapping[str, str]) -> list[Case]:
    """A case for each run of a comparison's record.

    Args:
        failures: Why a run fails, by its name.
    """
    cases = []
    for name, run in comparison.get("runs", {}).items():
        lines = [f"source: {run.get('source', '')}"]
        for output, errors in run.get("outputs", {}).items():
            figures = [f"{key} {value:g}" for key in ("sqnr_db", "cosine", "mse", "max_abs", "mismatch", "nan", "inf")
                       if isinstance(value := errors.get(key), (int, float))]
            lines.append(f"{output}: {', '.join(figures) or 'exact'}")
        lines += [f"{part}: {value:g}" for part, value in run.get("metric_parts", {}).items()]
        if "median" in run.get("latency_ms", {}):
            lines.append(f"latency: {run['latency_ms']['median']:g} ms")
        cases.append(Case(name, failures.get(name, ""), str(run.get("failed", "")), "\n".join(lines)))
    return cases


def junit_xml(model: str, cases: Sequence[Case], notes: Iterable[str] = ()) -> str:
    """The text of the file.

    Args:
        model: The network's name.
        notes: What else to know, for the suite's output.
    """
    failed, wrong = sum(bool(one.failure) and not one.error for one in cases), sum(bool(one.error) for one in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": str(wrong)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _clean(f"trt-tui compare {model}"), **counts})
    for one in cases:
        named = {"classname": _clean(model), "name": _clean(one.name), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", named)
        for kind, why in (("error", one.error), ("failure", "" if one.error else one.failure)):
            if why:
                ElementTree.SubElement(case, kind, {"message": _clean(why.splitlines()[0])}).text = _clean(why)
        if one.text:
            ElementTree.SubElement(case, "system-out").text = _clean(one.text)
    if text := "\n".join(notes):
        ElementTree.SubElement(suite, "system-out").text = _clean(text)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", visible(text, lines=True))
