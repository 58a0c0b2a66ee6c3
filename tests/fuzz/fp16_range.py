"""Many random small networks with values across FP16's limits: the forms of the simulation, and the state of each row.

    python -m tests.fuzz.fp16_range [--cases 1000] [--first SEED]

Every case is a seed. Five things are checked, each against its oracle in `tests.range_oracles`: the typed and the gated
network agree; the two forms of gates agree, with sums in FP16; what the exported network overflows is not called safe;
an overflow that is called harmless leaves the outputs finite; what a chunked FP16 sum overflows is not called safe.
"""

import argparse
import collections
import tempfile
import time
from pathlib import Path
from random import Random

import onnx

from tests import lowered, range_oracles
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.network.network import open_network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    backend = OnnxRuntimeBackend("cpu", threads=1)
    findings: collections.Counter[str] = collections.Counter()
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def opened(model: onnx.ModelProto):
            onnx.save(model, folder / "network.onnx")
            return open_network(folder / "network.onnx")

        for seed in range(options.first, options.first + options.cases):
            case = lowered.draw(Random(seed), backend, opened, scales=range_oracles.SCALES)
            for kind, found in (
                ("typed and gated", range_oracles.compare_typed(case, backend)),
                ("forms of gates", range_oracles.compare_forms(case, backend)),
                ("states", range_oracles.check_states(case, backend, folder)),
                ("effect", range_oracles.check_effect(case, backend, folder)),
                ("partial sums", range_oracles.check_partial_sums(Random(seed), backend, opened, folder)),
            ):
                findings[kind] += len(found)
                for text in found:
                    print(f"seed {seed}: {kind}: {text}", flush=True)
    print(
        f"{options.cases} networks of each kind in {time.monotonic() - since:.0f} s; findings: "
        + ", ".join(f"{kind} {count}" for kind, count in findings.items())
    )


if __name__ == "__main__":
    main()
