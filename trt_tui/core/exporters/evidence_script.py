"""The script of a bundle that writes `result.json`: what an engine of a release that is not here computes.

The file contains release, GPU, layers and errors at the outputs, but no weights and no samples.
`trt_tui.core.importers.engine_evidence` reads it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trt_tui.core.builder_options import EVIDENCE_FORMAT
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums

EVIDENCE_FILE, EVIDENCE_SCRIPT_FILE, OUTPUTS_FILE = "result.json", "evidence.py", "outputs.json"
ERROR_KEYS = ("sqnr_db", "max_abs", "mean_abs", "nan", "inf", "exact")
"""The keys of the errors of one output."""

LAYER_KEYS, TENSOR_KEYS = (("Name", "LayerType", "Metadata", "TacticName", "Origin"),
                           ("Name", "Dimensions", "Format/Datatype", "Datatype", "Format"))
"""The keys of the inspector's layers and of their tensors that the file contains."""

_SCRIPT = '''\
"""Writes {evidence}: release, GPU, layers and errors of the engine; no weights and no samples.

python3 {script} GRAPH, after Polygraphy has written {outputs}.
"""

import json
import subprocess
import sys

import numpy as np
from polygraphy.comparator import RunResults

FACTS = json.loads({facts!r})


def pooled(pairs):
    noise = signal = total = count = 0.0
    largest, nan, inf = 0.0, 0, 0
    for expected, actual in pairs:
        expected, actual = (np.asarray(array).astype(np.float64) for array in (expected, actual))
        nan += int((np.isnan(actual) & ~np.isnan(expected)).sum())
        inf += int((np.isinf(actual) & ~np.isinf(expected)).sum())
        finite = np.isfinite(expected) & np.isfinite(actual)
        difference = np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0))
        noise, signal = noise + (difference**2).sum(), signal + (np.where(finite, expected, 0)**2).sum()
        total, count = total + difference.sum(), count + difference.size
        largest = max(largest, float(difference.max(initial=0)))
    db = float(10 * np.log10(signal / noise)) if signal > 0 and noise > 0 and not (nan or inf) else None
    return {{"sqnr_db": db, "max_abs": largest, "mean_abs": float(total / count) if count else 0.0, "nan": nan,
            "inf": inf, "exact": bool(noise == 0 and not (nan or inf))}}


def slim(layer):
    if not isinstance(layer, dict):
        return layer
    tensors = {{side: [{{key: tensor[key] for key in {tensor_keys!r} if key in tensor}}
                      for tensor in layer.get(side, [])] for side in ("Inputs", "Outputs")}}
    return {{**{{key: layer[key] for key in {layer_keys!r} if key in layer}}, **tensors}}


def first_line(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


import {module} as trt

runs = dict(RunResults.load({outputs!r}).items())
engine = next(iterations for name, iterations in runs.items() if name != "fp32")
reference = next(iterations for _, iterations in RunResults.load({reference!r}).items())
names = [name for name in reference[0] if name in engine[0]]
gpu, _, capability = first_line(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]).partition(", ")
try:
    with open(sys.argv[1], encoding="utf-8") as stream:
        layers = [slim(layer) for layer in json.loads(stream.read(), strict=False)["Layers"]]
except (OSError, ValueError, KeyError):
    layers = []
result = {{"format": {format!r}, "version": 1, "builder": {module!r}, "release": trt.__version__, "gpu": gpu,
          "compute_capability": capability, "outputs": {{
              name: pooled((expected[name], actual[name]) for expected, actual in zip(reference, engine))
              for name in names}}, "layers": layers, **FACTS}}
with open({evidence!r}, "w", encoding="utf-8") as stream:
    json.dump(result, stream, indent=1)
print("Wrote {evidence}")
'''


def evidence_script_text(structure_sha256: str, config_text: str, is_rtx: bool, reference_file: str,
                         runs: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]) -> str:
    """Returns the text of the script.

    Args:
        structure_sha256: The structure hash of the network.
        config_text: The config, of which the file contains the hash.
        runs: The reference outputs and the simulated outputs of each iteration.
    """
    names = runs[0][0] if runs else {}
    facts = {
        "network": structure_sha256, "config_sha256": hashlib.sha256(config_text.encode()).hexdigest(),
        "simulated": {name: _pooled_errors([(reference[name], simulated[name]) for reference, simulated in runs])
                      for name in names if all(name in simulated for _, simulated in runs)}
    }
    return _SCRIPT.format(evidence=EVIDENCE_FILE, script=EVIDENCE_SCRIPT_FILE, outputs=OUTPUTS_FILE,
                          reference=reference_file, format=EVIDENCE_FORMAT, facts=json.dumps(facts),
                          module="tensorrt_rtx" if is_rtx else "tensorrt", layer_keys=LAYER_KEYS,
                          tensor_keys=TENSOR_KEYS)


def _pooled_errors(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    sums = ErrorSums()
    for reference, simulated in pairs:
        sums.add_tensor_pair(reference, simulated)
    errors: ErrorMetrics = sums.compute_error_metrics()
    return {key: getattr(errors, key) for key in ERROR_KEYS}
