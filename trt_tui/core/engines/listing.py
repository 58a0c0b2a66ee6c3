"""The list of engine layers that a builder logs: its most detailed message beginning ``Layers:``, one row a layer.

TensorRT-RTX writes it without a GPU, TensorRT 8.6 and 10 after a build at detailed profiling verbosity. A row has the
fields of the inspector's JSON in their order; types are called ``Datatype`` (RTX, 11) or ``Format/Datatype`` (to 10).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trt_tui.core.engines.inspector import EngineLayer, EngineReport, report_of
from trt_tui.core.engines.sources import Pair, Sums
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.budget import reading_budget

HEADING = "Layers:"
"""How the message begins."""

_ROW = re.compile(r"Name: (.*?), LayerType: ([^,\[\]{}]*), Inputs: (.*)", re.S)
_TENSORS = re.compile(r"(?:^|, )(Inputs|Constants|Outputs): \["
                      r"(?: \{ ((?:[^,]|,(?! (?:Inputs|Constants|Outputs): \[))*?) \}|)\](?=, [A-Z]|$)", re.S)
_TENSOR = re.compile(r"Name: (.*?), (?:Location|Dimensions): ", re.S)
_DATATYPE = re.compile(r"(Format/Datatype|Datatype): ([^,}]*)")
_METADATA = re.compile(r", Metadata: ?(.*)$", re.S)
_TACTIC = re.compile(r", TacticName: (.*?)(?=, [A-Z]\w*: |$)", re.S)
_ORIGIN = re.compile(r", Origin: (\w+)")
_WEIGHTS = re.compile(r', Weights: \{"Type": "(\w+)"')
_ENDS = ("", "Bindings:", "I/O Tensors:", "Engine Metadata:")


def read_listing(text: str, network: Outline, sums: Sums | None = None) -> EngineReport:
    """Reads a builder's list of engine layers.

    Args:
        text: The message, from its heading on.
        sums: What products are summed in, where the plan tells.

    Raises:
        InputError: it is no such list, or a row of it cannot be read; says which.
    """
    with reading_budget("the builder's list of layers", len(text)):
        rows = _rows(text)
        if not rows:
            raise InputError("the builder's list of layers cannot be read", "it has no row",
                             "Its release may write it in another way; a build on a GPU tells through the inspector.")
        report = report_of([_entry(row) for row in rows], network)
    return EngineReport(tuple(replace(layer, sums=_sums(layer, sums)) for layer in report.layers)) if sums else report


def _sums(layer: EngineLayer, sums: Sums) -> tuple[Pair, ...]:
    if layer.is_mha:
        return sums.attentions.get(layer.tactic, ())
    summed = layer.type != "kgen" and sums.in_fp32.intersection(layer.nodes)  # one may add the bias of a product
    return ((Precision.FP32, Precision.FP32),) if summed else ()


def _rows(text: str) -> list[str]:
    """The rows, each with what a name of more than one line has on the following ones."""
    rows: list[list[str]] = []
    complete = False
    heading, _, rest = text.partition("\n")
    if heading.strip() != HEADING:
        return []
    for line in rest.split("\n"):
        if line.startswith("Name: "):
            rows.append([line])
            complete = ", Metadata:" in line
        elif line.strip() in _ENDS and (not rows or complete):
            break
        elif rows:
            rows[-1].append(line)
            complete = complete or ", Metadata:" in line
    return ["\n".join(lines) for lines in rows]


def _entry(row: str) -> Mapping[str, Any]:
    """A row as an entry of the inspector's JSON."""
    match = _ROW.fullmatch(row)
    if match is None:
        raise _unread(row)
    metadata = _METADATA.search(row)
    middle = row[match.start(3) - len("Inputs: "):metadata.start() if metadata is not None else None]
    entry: dict[str, Any] = {"Name": match[1], "LayerType": match[2].strip(),
                             "Metadata": metadata[1] if metadata is not None else ""}
    for found in _TENSORS.finditer(middle):
        entry[found[1]] = [_tensor(text, row) for text in found[2].split(" }, { ")] if found[2] else []
    if "Inputs" not in entry or "Outputs" not in entry:
        raise _unread(row)
    for key, pattern in (("TacticName", _TACTIC), ("Origin", _ORIGIN)):
        if (told := pattern.search(middle)) is not None:
            entry[key] = told[1]
    if (weights := _WEIGHTS.search(middle)) is not None:
        entry["Weights"] = {"Type": weights[1]}
    return entry


def _tensor(text: str, row: str) -> Mapping[str, str]:
    name, datatype = _TENSOR.match(text), _DATATYPE.search(text)
    if name is None or datatype is None:
        raise _unread(row)
    return {"Name": name[1], datatype[1]: datatype[2].strip()}


def _unread(row: str) -> InputError:
    return InputError("the builder's list of layers cannot be read", f"no layer can be made out in: {row[:120]}",
                      "Its release may write it in another way; a build on a GPU tells through the inspector.")
