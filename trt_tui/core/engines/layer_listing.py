"""The list of engine layers in a builder's log: a message that begins with ``Layers:`` and has one row per layer.

TensorRT-RTX logs it without a GPU. TensorRT 8.6 and 10 log it after a build with detailed profiling verbosity. A row
has the fields of the inspector's JSON in their order. Types are called ``Datatype`` (RTX, 11) or ``Format/Datatype``
(up to 10).
"""

import re
from collections.abc import Mapping
from typing import Any

from trt_tui.core.engines.inspector import EngineReport, build_engine_report
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_reading_resources

LISTING_HEADING = "Layers:"
"""The first line of the message."""

_ROW_PATTERN = re.compile(r"Name: (.*?), LayerType: ([^,\[\]{}]*), Inputs: (.*)", re.S)
_TENSORS_PATTERN = re.compile(r"(?:^|, )(Inputs|Constants|Outputs): \["
                              r"(?: \{ ((?:[^,]|,(?! (?:Inputs|Constants|Outputs): \[))*?) \}|)\](?=, [A-Z]|$)", re.S)
_TENSOR_NAME_PATTERN = re.compile(r"Name: (.*?), (?:Location|Dimensions): ", re.S)
_DATATYPE_PATTERN = re.compile(r"(Format/Datatype|Datatype): ([^,}]*)")
_METADATA_PATTERN = re.compile(r", Metadata: ?(.*)$", re.S)
_TACTIC_PATTERN = re.compile(r", TacticName: (.*?)(?=, [A-Z]\w*: |$)", re.S)
_ORIGIN_PATTERN = re.compile(r", Origin: (\w+)")
_WEIGHTS_TYPE_PATTERN = re.compile(r', Weights: \{"Type": "(\w+)"')
_END_LINES = ("", "Bindings:", "I/O Tensors:", "Engine Metadata:")


def read_layer_listing(listing_text: str, network: NetworkOutline) -> EngineReport:
    """Reads a builder's list of engine layers.

    Args:
        listing_text: The log message, from its heading on.

    Raises:
        InputError: The text is not such a list, or a row cannot be read; the error quotes the row.
    """
    with limit_reading_resources("the builder's list of layers", len(listing_text)):
        rows = _split_listing_into_rows(listing_text)
        if not rows:
            raise InputError("the builder's list of layers cannot be read", "it is empty",
                             "Its release may use another format; a build on a GPU reports its layers through the "
                             "inspector.")
        return build_engine_report([_parse_row(row) for row in rows], network)


def _split_listing_into_rows(listing_text: str) -> list[str]:
    """Splits a list of engine layers into rows. A row with a name of several lines stays together."""
    rows: list[list[str]] = []
    complete = False
    heading, _, rest = listing_text.partition("\n")
    if heading.strip() != LISTING_HEADING:
        return []
    for line in rest.split("\n"):
        if line.startswith("Name: "):
            rows.append([line])
            complete = ", Metadata:" in line
        elif line.strip() in _END_LINES and (not rows or complete):
            break
        elif rows:
            rows[-1].append(line)
            complete = complete or ", Metadata:" in line
    return ["\n".join(lines) for lines in rows]


def _parse_row(listing_row: str) -> Mapping[str, Any]:
    """Parses a row of the list into an entry in the form of the inspector's JSON."""
    match = _ROW_PATTERN.fullmatch(listing_row)
    if match is None:
        raise _unreadable_row_error(listing_row)
    metadata = _METADATA_PATTERN.search(listing_row)
    middle = listing_row[match.start(3) - len("Inputs: "):metadata.start() if metadata is not None else None]
    entry: dict[str, Any] = {"Name": match[1], "LayerType": match[2].strip(),
                             "Metadata": metadata[1] if metadata is not None else ""}
    for tensors_match in _TENSORS_PATTERN.finditer(middle):
        entry[tensors_match[1]] = [_parse_tensor(text, listing_row)
                                   for text in tensors_match[2].split(" }, { ")] if tensors_match[2] else []
    if "Inputs" not in entry or "Outputs" not in entry:
        raise _unreadable_row_error(listing_row)
    for key, pattern in (("TacticName", _TACTIC_PATTERN), ("Origin", _ORIGIN_PATTERN)):
        if (value_match := pattern.search(middle)) is not None:
            entry[key] = value_match[1]
    if (weights := _WEIGHTS_TYPE_PATTERN.search(middle)) is not None:
        entry["Weights"] = {"Type": weights[1]}
    return entry


def _parse_tensor(tensor_text: str, listing_row: str) -> Mapping[str, str]:
    name, datatype = _TENSOR_NAME_PATTERN.match(tensor_text), _DATATYPE_PATTERN.search(tensor_text)
    if name is None or datatype is None:
        raise _unreadable_row_error(listing_row)
    return {"Name": name[1], datatype[1]: datatype[2].strip()}


def _unreadable_row_error(listing_row: str) -> InputError:
    return InputError("the builder's list of layers cannot be read",
                      f"no layer was recognised in: {listing_row[:120]}",
                      "Its release may use another format; a build on a GPU reports its layers through the inspector.")
