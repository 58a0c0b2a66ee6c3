"""A comparison as JUnit XML for test servers, with a test case for each run, stage and engine."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from trt_tui.core.measure.error_metrics import list_error_columns
from trt_tui.formatting import escape_hidden_characters

_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, even escaped."""


@dataclass(frozen=True)
class JUnitCase:
    """One JUnit test case: a run of a comparison with its failure, error and measured values.

    Attributes:
        failure: The reason why it fails; "" if it passes.
        error: The reason why it could not be measured; "" if it was.
        text: Its measured values.
    """

    name: str
    failure: str = ""
    error: str = ""
    text: str = ""


def build_junit_cases(comparison: Mapping[str, Any], failures: Mapping[str, str]) -> list[JUnitCase]:
    """Builds a test case for each run of a comparison's JSON record.

    Args:
        failures: The reason why a run fails, by its name.
    """
    cases = []
    for name, run in comparison.get("runs", {}).items():
        lines = [f"source: {run.get('source', '')}"]
        for output, errors in run.get("outputs", {}).items():
            keys = (*(metric.key for metric in list_error_columns("test report")), "nan", "inf")
            values = [f"{key} {value:g}" for key in keys
                      if isinstance(value := errors.get(key), (int, float))]
            lines.append(f"{output}: {', '.join(values) or 'exact'}")
        lines += [f"{part}: {value:g}" for part, value in run.get("metric_parts", {}).items()]
        if "median" in run.get("latency_ms", {}):
            lines.append(f"latency: {run['latency_ms']['median']:g} ms")
        cases.append(JUnitCase(name, failures.get(name, ""), str(run.get("failed", "")), "\n".join(lines)))
    return cases


def junit_xml_text(model_name: str, cases: Sequence[JUnitCase], notes: Iterable[str] = ()) -> str:
    """Returns the text of a JUnit XML file.

    Args:
        model_name: The name of the network.
        notes: Additional lines for the output of the test suite.
    """
    failure_count, error_count = sum(bool(test_case.failure) and not test_case.error
                                     for test_case in cases), sum(bool(test_case.error) for test_case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failure_count), "errors": str(error_count)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite",
                                   {"name": _replace_invalid_characters(f"trt-tui compare {model_name}"), **counts})
    for test_case in cases:
        attributes = {
            "classname": _replace_invalid_characters(model_name), "name": _replace_invalid_characters(test_case.name),
            "time": "0"
        }
        case = ElementTree.SubElement(suite, "testcase", attributes)
        for kind, reason in (("error", test_case.error), ("failure", "" if test_case.error else test_case.failure)):
            if reason:
                ElementTree.SubElement(case, kind, {"message": _replace_invalid_characters(reason.splitlines()[0])
                                                    }).text = _replace_invalid_characters(reason)
        if test_case.text:
            ElementTree.SubElement(case, "system-out").text = _replace_invalid_characters(test_case.text)
    if text := "\n".join(notes):
        ElementTree.SubElement(suite, "system-out").text = _replace_invalid_characters(text)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _replace_invalid_characters(text: str) -> str:
    return _INVALID_CHARACTERS.sub("\ufffd", escape_hidden_characters(text, keep_line_breaks=True))
