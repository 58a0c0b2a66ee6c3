"""Files that NVIDIA's TREx (trt-engine-explorer) and trtexec share: the layers of an engine and their times.

TREx reads ``ENGINE.graph.json`` and ``ENGINE.profile.json``, as trtexec writes them with ``--exportLayerInfo`` and
``--exportProfile`` (NVIDIA/TensorRT, ``tools/experimental/trt-engine-explorer``: ``utils/process_engine.py``,
``trex/parser.py`` and ``trex/activations.py``).

- The graph is the inspector's JSON. TREx needs ``Bindings``, the names of the network's inputs and outputs, and the key
  ``Format/Datatype`` in each tensor. TensorRT 11 and TensorRT-RTX write ``I/O Tensors`` and ``Datatype`` instead
  (NVIDIA's guide "Migrating IEngineInspector Usage from TensorRT 10.x to 11.x"). TensorRT 8.6 writes control characters
  that are not valid in JSON.
- The profile is a list. TREx takes the entries of four or five keys as layers, and leaves out the first entry, the
  number of executions. trtexec writes ``name``, ``timeMs``, ``averageMs``, since 2022 ``medianMs``, and ``percentage``
  for a layer. It does not escape the names (NVIDIA/TensorRT, ``samples/common/sampleReporting.cpp``).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_text

_GRAPH_SUFFIX, _PROFILE_SUFFIX = ".graph.json", ".profile.json"

_MAX_LAYER_MS = 1e9
"""The largest time of an engine layer that is accepted, which is 11 days."""


def layer_file_paths(engine_path: Path) -> tuple[Path, Path]:
    """Returns the paths of the graph and the profile of an engine file, as TREx names them."""
    return (engine_path.with_name(engine_path.name + _GRAPH_SUFFIX),
            engine_path.with_name(engine_path.name + _PROFILE_SUFFIX))


def find_graph_of_profile(profile_path: Path) -> Path | None:
    """Returns the path of the graph beside a profile, as TREx names them; None if there is none."""
    if not profile_path.name.endswith(_PROFILE_SUFFIX):
        return None
    graph_path = profile_path.with_name(profile_path.name.removesuffix(_PROFILE_SUFFIX) + _GRAPH_SUFFIX)
    return graph_path if graph_path.exists() else None


def engine_graph_text(inspector_json: str) -> str:
    """Returns the inspector's JSON of any release with the keys that TREx needs; all other content is unchanged.

    Raises:
        InputError: The text is not the JSON of an inspector.
    """
    try:
        graph = json.loads(inspector_json, strict=False)
        layers = [layer for layer in graph["Layers"] if isinstance(layer, dict)]
        tensors: list[dict[str, Any]] = [tensor for layer in layers for key in ("Inputs", "Outputs")
                                         for tensor in layer.get(key, ())]
        for tensor in tensors:
            if "Datatype" in tensor:
                tensor.setdefault("Format/Datatype", tensor["Datatype"])
        if "Bindings" not in graph:
            graph["Bindings"] = [tensor["Name"] for tensor in graph.get("I/O Tensors", ())]
        return json.dumps(graph, indent=1) + "\n"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError("this is not the layer information of an engine", f"{type(error).__name__}: {error}",
                         "Build the engine again.") from None


def layer_profile_text(mean_ms_by_layer: Mapping[str, float], run_count: int) -> str:
    """Returns the times of engine layers in the form of trtexec's ``--exportProfile``.

    Args:
        mean_ms_by_layer: The mean milliseconds of one execution, by engine layer in execution order.
        run_count: Number of timed executions.
    """
    total_ms = sum(mean_ms_by_layer.values())
    entries = [{"name": name, "timeMs": mean_ms * run_count, "averageMs": mean_ms,
                "percentage": 100 * mean_ms / total_ms if total_ms else 0.0}
               for name, mean_ms in mean_ms_by_layer.items()]
    return json.dumps([{"count": run_count}, *entries], indent=1) + "\n"


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
                      "Write it with trtexec --exportProfile, or with trt-tui build -o and --data.")
