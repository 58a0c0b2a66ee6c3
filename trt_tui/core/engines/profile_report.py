"""The engine layers with their times, from the profile that trtexec or trt-tui has written of an engine.

The graph beside the profile (see `trt_tui.core.engines.trex`) tells the ONNX nodes and the precision of each engine
layer. Without it, only the names of the engine layers show the nodes.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trt_tui.core.engines.inspector import EngineReport, build_engine_report, read_engine_report
from trt_tui.core.engines.trex import find_graph_of_profile, read_layer_profile
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes


def read_profile_report(profile_path: Path, network: NetworkOutline) -> EngineReport:
    """Reads the engine layers of a profile with their times, and with the types of the graph beside it if there is one.

    Raises:
        InputError: A file cannot be read.
    """
    ms_by_layer, graph_path = read_layer_profile(profile_path), find_graph_of_profile(profile_path)
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
