"""The engine layers with their times, from the profile that trtexec has written of an engine.

``trtexec --exportProfile`` writes ``name``, ``timeMs``, ``averageMs``, since 2022 ``medianMs``, and ``percentage`` for
a layer. It does not escape the names (NVIDIA/TensorRT, ``samples/common/sampleReporting.cpp``). The graph beside the
profile, which ``--exportLayerInfo`` writes, tells the ONNX nodes and the precision of each engine layer. Without it,
only the names of the engine layers show the nodes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.engines.inspector import EngineReport, build_engine_report, read_engine_report
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes, read_text

GRAPH_SUFFIX, _PROFILE_SUFFIX = ".graph.json", ".profile.json"
"""The suffixes of the files of an engine's layers, and of their times."""

_MAX_LAYER_MS = 1e9
"""The largest time of an engine layer that is accepted, which is 11 days."""


def read_profile_report(profile_path: Path, network: NetworkOutline) -> EngineReport:
    """Reads the engine layers of a profile with their times, and with the types of the graph beside it if there is one.

    Raises:
        InputError: A file cannot be read.
    """
    ms_by_layer, graph_path = read_layer_profile(profile_path), _find_graph_of_profile(profile_path)
    with limit_file_reading(profile_path if graph_path is None else graph_path):
        graph_report = EngineReport(()) if graph_path is None else read_engine_report(
            read_bytes(graph_path).decode("utf-8", "replace"), network)
        listed_names = {layer.name for layer in graph_report.layers}
        named_report = build_engine_report([_entry_of_name(name) for name in ms_by_layer if name not in listed_names],
                                           network)
        remaining_ms = dict(ms_by_layer)
        return EngineReport(tuple(replace(layer, ms=remaining_ms.pop(layer.name, None))
                                  for layer in (*graph_report.layers, *named_report.layers)))


def _entry_of_name(engine_layer_name: str) -> Mapping[str, object]:
    """Returns an entry in the form of the inspector's JSON for an engine layer of which only the name is known."""
    return {"Name": engine_layer_name, "Inputs": [{"Name": "", "Datatype": "N/A"}]}


def _find_graph_of_profile(profile_path: Path) -> Path | None:
    """Returns the path of the graph beside a profile; None if there is none."""
    if not profile_path.name.endswith(_PROFILE_SUFFIX):
        return None
    graph_path = profile_path.with_name(profile_path.name.removesuffix(_PROFILE_SUFFIX) + GRAPH_SUFFIX)
    return graph_path if graph_path.exists() else None


def read_layer_profile(profile_path: Path) -> dict[str, float]:
    """Reads the times of engine layers from a file of trtexec's ``--exportProfile``.

    Returns the mean milliseconds of one execution by engine layer, in execution order. Times of the same name are
    added.

    Raises:
        InputError: The file cannot be read, is not such a profile, or contains a time that is not possible.
    """
    with limit_file_reading(profile_path):
        try:
            entries = json.loads(read_text(profile_path), strict=False)
        except ValueError as error:
            raise _invalid_profile_error(profile_path, str(error)) from None
        if not isinstance(entries, list):
            raise _invalid_profile_error(profile_path, "it is not a list")
        mean_ms_by_layer: dict[str, float] = {}
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise _invalid_profile_error(profile_path, f"entry {index} is not an object")
            if index == 0 and "count" in entry and "name" not in entry:
                continue
            name, mean_ms = entry.get("name"), entry.get("averageMs")
            if not isinstance(name, str):
                raise _invalid_profile_error(profile_path, f"entry {index} has no name")
            if isinstance(mean_ms, bool) or not isinstance(mean_ms, int | float) or not 0 <= mean_ms <= _MAX_LAYER_MS:
                raise _invalid_profile_error(profile_path, f"averageMs of entry {index} is not a time in milliseconds")
            mean_ms_by_layer[name] = mean_ms_by_layer.get(name, 0.0) + float(mean_ms)
    if not math.fsum(mean_ms_by_layer.values()):
        raise _invalid_profile_error(profile_path, "no engine layer takes any time")
    return mean_ms_by_layer


def _invalid_profile_error(profile_path: Path, cause: str) -> InputError:
    return InputError(f"{profile_path.name} is not a profile of engine layers", cause,
                      "Write it with trtexec --exportProfile.")
