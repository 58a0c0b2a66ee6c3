"""Files that NVIDIA's TREx (trt-engine-explorer) reads: the layers of an engine and their times.

TREx reads ``ENGINE.graph.json`` and ``ENGINE.profile.json``, as trtexec writes them with ``--exportLayerInfo`` and
``--exportProfile`` (NVIDIA/TensorRT, ``tools/experimental/trt-engine-explorer``: ``utils/process_engine.py``,
``trex/parser.py`` and ``trex/activations.py``).

- The graph is the inspector's JSON. TREx needs ``Bindings``, the names of the network's inputs and outputs, and the key
  ``Format/Datatype`` in each tensor. TensorRT 11 and TensorRT-RTX write ``I/O Tensors`` and ``Datatype`` instead
  (NVIDIA's guide "Migrating IEngineInspector Usage from TensorRT 10.x to 11.x"). TensorRT 8.6 writes control characters
  that are not valid in JSON.
- The profile is a list. TREx takes the entries of four or five keys as layers, and leaves out the first entry, the
  number of executions.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trt_tui.errors import InputError


def layer_file_paths(engine_path: Path) -> tuple[Path, Path]:
    """Returns the paths of the graph and the profile of an engine file, as TREx names them."""
    return (engine_path.with_name(f"{engine_path.name}.graph.json"),
            engine_path.with_name(f"{engine_path.name}.profile.json"))


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
