"""Many random small networks and configs: typed = gated, operands agree, and TensorRT-RTX builds what was asked.

    python -m tests.fuzz.lowering [--cases 2000] [--first SEED] [--build EVERY]

Every case is a seed; each one that fails is told by it. Every so many cases (0 for none) the typed network is built,
and what TensorRT-RTX says of its layers is compared with the config: which layers multiply in INT8 or FP8,
and that INT4 weights stay such.
"""

import argparse
import collections
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

import onnx

from tests import lowered, rtx
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision


def check(seed: int, backend: OnnxRuntimeBackend, folder: Path, build: bool) -> list[tuple[str, str]]:
    """What is wrong with a case, or worth counting: kind and words."""
    path = folder / "network.onnx"

    def opened(model: onnx.ModelProto):
        onnx.save(model, path)
        return open_network(path)

    case = lowered.draw(Random(seed), backend, opened)
    found = []
    different = lowered.compare(case, backend)
    if different is not None:
        found.append(("differ", f"{different.group}: {different.said}"))
    model = lower_to_typed_network(case.network, case.config, case.ranges).model
    mixed = [name for name, types in lowered.scale_types(model).items() if len(types) > 1]
    if mixed:
        found.append(("operands differ in scale type", ", ".join(mixed)))
    if build:
        found += [(kind, said) for kind, said in _built(case, model)]
    return found


def _built(case: lowered.Case, model) -> list[tuple[str, str]]:
    try:
        rows = rtx.layers(model).splitlines()
    except AssertionError as error:
        return [("not built", str(error).replace("\n", " ")[:300])]
    told = []
    for group in case.network.groups:
        precision = case.config.precision_of(group)
        word, times = _CODES.get(precision, ("", 0))
        own = [row for row in rows if f"[ONNX Layer: {group.name}]" in row]
        if not word or not own:  # no output depends on it
            continue
        if precision is Precision.INT4:  # a kernel of its own dequantizes weights of one block
            own = rows
        found = any(row.count(f"Datatype: {word}") >= times for row in own)
        told.append((f"{'in' if found else 'not in'} {precision.label}", f"{group.operator} {group.name}"))
    return told


_CODES = {Precision.INT8: ("Int8", 2), Precision.FP8: ("FP8", 2), Precision.INT4: ("Int4", 1)}
"""How TensorRT-RTX names codes, and how many operands of a layer are such."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--build", type=int, default=10, metavar="EVERY")
    options = parser.parse_args()
    backend = OnnxRuntimeBackend("cpu", threads=1)
    counts: collections.Counter[str] = collections.Counter()
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.cases):
            build = bool(options.build) and seed % options.build == 0
            try:
                found = check(seed, backend, Path(folder), build)
            except Exception:
                found = [("failed", traceback.format_exc(limit=-2))]
            counts.update(kind for kind, _ in found)
            counts["built"] += build
            for kind, said in found:
                if not kind.startswith("in "):
                    print(f"seed {seed}: {kind}: {said}", flush=True)
    print(
        f"{options.cases} cases in {time.monotonic() - since:.0f} s: "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    )


if __name__ == "__main__":
    main()
