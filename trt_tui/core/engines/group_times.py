"""The time of each fusion group in an engine, from the profile that trtexec or trt-tui has written of the engine.

A profile names engine layers only, and an engine layer can compute several groups. Its time is divided among them by
their multiply-accumulates in it, or equally if none of them multiplies. The graph beside the profile (see
`trt_tui.core.engines.trex`) tells the ONNX nodes and the precision of each engine layer. Without it, only the names of
the engine layers show the nodes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trt_tui.core.engines.group_implementations import GroupImplementation, find_group_implementations
from trt_tui.core.engines.inspector import (
    QDQ,
    REFORMAT,
    EngineLayer,
    EngineReport,
    LayerFinder,
    build_engine_report,
    read_engine_report,
)
from trt_tui.core.engines.trex import find_graph_of_profile, read_layer_profile
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes
from trt_tui.formatting import counted_noun_text, milliseconds_text

MIN_MATCHED_FRACTION = 0.5
"""The smallest matched fraction of the time of computing engine layers.

A profile with less is refused: it is of another network, or its names do not show the nodes of this network."""


@dataclass(frozen=True)
class GroupTimes:
    """The times of the fusion groups of a network in one profile.

    Attributes:
        profile_name: The name of the file.
        total_ms: The time of all engine layers.
        matched_ms: The part of ``total_ms`` whose engine layers belong to a group.
        reformat_ms: The part of ``total_ms`` in reformats and unfused Q/DQ, which belong to no group.
        matched_group_count: Number of groups that an engine layer belongs to.
        ms_by_group: The time of each group. A group without an engine layer gets a part of the unmatched time.
        graph_name: The name of the graph beside the profile; "" if there is none.
        implementations: The implementation of each group in the engine, as far as the graph shows it.
    """

    profile_name: str
    total_ms: float
    matched_ms: float
    reformat_ms: float
    matched_group_count: int
    ms_by_group: Mapping[str, float]
    graph_name: str = ""
    implementations: Mapping[str, GroupImplementation] = field(default_factory=dict)

    @property
    def match_text(self) -> str:
        """The matched part for users: "int8.json: 96% of 3.21 ms is matched to 52 of 53 fused layers"."""
        matched, reformats = (f"{100 * ms / self.total_ms:.0f}%" for ms in (self.matched_ms, self.reformat_ms))
        return (f"{self.profile_name}: {matched} of {milliseconds_text(self.total_ms)} is matched to "
                f"{self.matched_group_count} of {counted_noun_text(len(self.ms_by_group), 'fused layer')}"
                + (f"; reformats take {reformats}" if self.reformat_ms else ""))


def read_group_times(profile_path: Path, network: NetworkOutline) -> GroupTimes:
    """Reads a profile, and the graph beside it if there is one.

    Args:
        network: The outline with the sizes of the layers as executed.

    Raises:
        InputError: A file cannot be read, or the profile matches too little of the network.
    """
    ms_by_layer, graph_path = read_layer_profile(profile_path), find_graph_of_profile(profile_path)
    with limit_file_reading(profile_path if graph_path is None else graph_path):
        graph_report, profile_report = _read_reports(ms_by_layer, graph_path, network)
        group_times = _match_layers(profile_path.name, profile_report.layers, math.fsum(ms_by_layer.values()), network)
        if graph_path is not None:
            group_times = replace(group_times, graph_name=graph_path.name,
                                  implementations=find_group_implementations(graph_report, network))
    computing_ms = group_times.total_ms - group_times.reformat_ms
    if group_times.matched_ms < MIN_MATCHED_FRACTION * computing_ms or not group_times.matched_ms:
        raise InputError(
            f"{profile_path.name} matches too little of {network.name}", group_times.match_text.partition(": ")[2],
            "Give the profile of an engine of this network. If the names in it show no nodes, write the layers of the "
            "same engine beside it: NAME.graph.json of trtexec --exportLayerInfo --profilingVerbosity=detailed, beside "
            "NAME.profile.json.")
    return group_times


def read_profile_report(profile_path: Path, network: NetworkOutline) -> EngineReport:
    """Reads the engine layers of a profile with their times, and with the types of the graph beside it if there is one.

    Raises:
        InputError: A file cannot be read.
    """
    ms_by_layer, graph_path = read_layer_profile(profile_path), find_graph_of_profile(profile_path)
    with limit_file_reading(profile_path if graph_path is None else graph_path):
        return _read_reports(ms_by_layer, graph_path, network)[1]


def _read_reports(ms_by_layer: Mapping[str, float], graph_path: Path | None,
                  network: NetworkOutline) -> tuple[EngineReport, EngineReport]:
    """Returns the engine layers of a graph, and those of the graph and a profile together with their times."""
    graph_report = EngineReport(()) if graph_path is None else read_engine_report(
        read_bytes(graph_path).decode("utf-8", "replace"), network)
    listed_names = {layer.name for layer in graph_report.layers}
    named_report = build_engine_report([_entry_of_name(name) for name in ms_by_layer if name not in listed_names],
                                       network)
    remaining_ms = dict(ms_by_layer)
    return graph_report, EngineReport(tuple(replace(layer, ms=remaining_ms.pop(layer.name, None))
                                            for layer in (*graph_report.layers, *named_report.layers)))


def _entry_of_name(engine_layer_name: str) -> Mapping[str, object]:
    """Returns an entry in the form of the inspector's JSON for an engine layer of which only the name is known."""
    return {"Name": engine_layer_name, "Inputs": [{"Name": "", "Datatype": "N/A"}]}


def _match_layers(profile_name: str, engine_layers: Sequence[EngineLayer], total_ms: float,
                  network: NetworkOutline) -> GroupTimes:
    ms_by_group, matched_ms, reformat_ms = dict.fromkeys((group.name for group in network.groups), 0.0), 0.0, 0.0
    matched_groups: set[str] = set()
    layer_finder = LayerFinder(network)
    for layer in engine_layers:
        macs_by_group: dict[str, int] = {}
        # A region with two unknown ends would span the whole network, also if the profile is of another one.
        is_known = not layer.is_fused_region or layer_finder.knows_region(layer.name)
        for node in layer.network_layers if is_known else ():
            if (group := network.find_group(node)) is not None:
                macs_by_group[group.name] = macs_by_group.get(group.name, 0) + (network.get_layer(node).macs or 0)
        ms = layer.ms or 0.0
        if macs_by_group:
            matched_groups.update(macs_by_group)
            matched_ms += ms
            total_macs = sum(macs_by_group.values())
            for name, macs in macs_by_group.items():
                ms_by_group[name] += ms * (macs / total_macs if total_macs else 1 / len(macs_by_group))
        elif layer.kind in (REFORMAT, QDQ):
            reformat_ms += ms
    ms_by_group |= _estimate_unmatched_groups(
        [group for group in network.groups if group.name not in matched_groups],
        max(0.0, total_ms - matched_ms - reformat_ms), network)
    return GroupTimes(profile_name, total_ms, matched_ms, reformat_ms, len(matched_groups), ms_by_group)


def _estimate_unmatched_groups(groups: Sequence[FusionGroup], unmatched_ms: float,
                               network: NetworkOutline) -> dict[str, float]:
    """Divides the unmatched time among the groups without an engine layer, by their multiply-accumulates."""
    macs_by_group = {group.name: sum(network.get_layer(layer).macs or 0 for layer in group.layers) for group in groups}
    total_macs = sum(macs_by_group.values())
    return {name: unmatched_ms * macs / total_macs for name, macs in macs_by_group.items()} if total_macs else {}
