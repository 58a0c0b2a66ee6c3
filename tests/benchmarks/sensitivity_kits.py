"""The sensitivities of all layers, ours beside AIMET's: ranking, seconds, processor seconds and memory.

    python -m tests.benchmarks.sensitivity_kits [encoder] [resnet50] [mobilenetv2] [MODEL.onnx=DATA.npz]
        [--directory FOLDER] [--limit S] [--samples N] [--batch B] [--only TEXT]

Networks, samples and AIMET's environment are those of `quantization_kits`: half of the batches calibrate, and the
others are measured. Seconds count from the start of each process. AIMET 2.42 gets our Q/DQ file, and
`analyze_per_layer_sensitivity` quantizes one layer at a time on all samples. A fused layer has the largest error of its
nodes there. Our rows measure the same ("alone"), and the error that disappears if one layer is raised ("shares"), on
all samples ("exact") and as the commands do by default. "rank" is Spearman's correlation with AIMET's map, "rank,
exact" with our exact map of the same kind. "18 of 20" is the mean number of samples of a layer until 18 of the first
twenty rows are among the first twenty of the exact map, with the processor seconds of the process until then. AIMET
evaluates every operator with a quantizer, and counts the quantization of a tensor at its producer; ours counts it at
the layer that reads it. So the two rankings need not agree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import kit_case as case
from tests.benchmarks.quantization_kits import open_case

MODULE = "tests.benchmarks.sensitivity_kits"
NETWORKS = ("encoder", "resnet50", "mobilenetv2")
ROWS = (
    ("ours", "alone, exact"),
    ("ours", "alone, default"),
    ("ours", "shares, exact"),
    ("ours", "shares, default"),
    ("aimet", "alone"),
)
FIRST, NEEDED = 20, 18


def aimet(folder: Path) -> None:
    """Runs in AIMET's environment."""
    import onnx
    from aimet_onnx import QuantizationSimModel, analyze_per_layer_sensitivity

    def error_db(session: Any) -> float:
        names = [entry.name for entry in session.get_outputs()]
        return case.sqnr_db(folder / case.HELD_OUT, "judge", lambda feed: session.run(names, feed))

    sim = QuantizationSimModel.from_onnx_qdq(onnx.load(folder / "qdq.onnx"))
    sensitivities = analyze_per_layer_sensitivity(sim, error_db)
    case.say(**case.spent(), ended=True, map={name: 10 ** (-db / 10) for name, db in sensitivities.items()})


def ours(folder: Path, row: str) -> None:
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.measure.group_sweep import GroupSweep
    from trt_tui.core.measure.judged_outputs import select_judged_outputs
    from trt_tui.core.measure.simulation import Analysis
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision

    network, calibrating, ranges, backend = open_case(folder)
    samples = load_samples(
        folder / case.HELD_OUT / "judge.npz", network.inputs, batch=calibrating.count_samples_of_feed(0)
    )
    config = PrecisionConfig(Precision.INT8, Precision.FP32)
    kind, exact = row.split(", ")
    known = folder / f"{kind}.json"
    true = json.loads(known.read_text()) if exact == "default" and known.exists() else {}
    with Analysis(
        network, backend, samples, select_judged_outputs(network, ()), boundary_type=config.other
    ) as analysis:
        rounded = analysis.make_config_feed(config, ranges)  # kept, so that weights are rounded only once
        sweep = GroupSweep(
            analysis,
            config,
            ranges,
            group_order=[group.name for group in network.groups if group.is_quantizable],
            reduces_groups=kind == "alone",
            measures_all_samples=exact == "exact",
        )
        reached = reached_s = None
        for _ in sweep.measure_groups():
            if true and sweep.has_estimate_of_every_group and reached is None and sweep.updated_groups:
                sweep.updated_groups.clear()
                shown = {name: sweep.estimate_error_share(name).fraction for name in sweep.measured_groups}
                if len(set(first_rows(shown)) & set(first_rows(true))) >= min(NEEDED, len(true)):
                    reached, reached_s = sweep.planner.measured_count / len(shown), case.spent()["processor_s"]
        values = case.spent()
        del rounded
    errors = {name: sweep.estimate_error_share(name).fraction for name in sweep.measured_groups}
    if exact == "exact":
        known.write_text(json.dumps(errors))
    samples_per_unit = sweep.sample_count / sweep.planner.sample_count  # a unit is a sample or a feed
    case.say(
        **values,
        ended=True,
        map=errors,
        reached=reached and reached * samples_per_unit,
        of=sweep.sample_count,
        reached_s=reached_s,
        mean=sweep.planner.measured_count * samples_per_unit / len(errors),
        groups={name: list(network.get_group(name).layers) for name in errors},
    )


def first_rows(errors: Mapping[str, float]) -> list[str]:
    return sorted(errors, key=lambda name: -errors[name])[:FIRST]


def correlation(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Spearman's correlation over the names in both; NaN with fewer than 3."""
    from tests.benchmarks.search import spearman

    names = sorted(first.keys() & second.keys())
    return spearman([first[name] for name in names], [second[name] for name in names]) if len(names) > 2 else math.nan


def compare(name: str, model: Path, data: Path, arguments: argparse.Namespace) -> str:
    from tests.benchmarks import measure

    folder = arguments.directory / f"case-sensitivity-{model.stem}"
    case.write_case(model, data, folder, arguments.batch, arguments.samples)
    write_quantized(folder)
    results = {
        (kit, row): case.run_row(MODULE, kit, row, folder, arguments.directory, arguments.limit)
        for kit, row in ROWS
        if any(text in f"{kit} {row}" for text in arguments.only or [""])
    }
    peer, groups = (
        results.get(("aimet", "alone"), {}),
        next((value["groups"] for value in results.values() if "groups" in value), {}),
    )
    nodes = peer.get("map", {})
    theirs = {
        group: max(nodes[layer] for layer in layers if layer in nodes)
        for group, layers in groups.items()
        if any(layer in nodes for layer in layers)
    }
    rows = []
    for (kit, row), value in results.items():
        errors = theirs if kit == "aimet" else value.get("map", {})
        exact = results.get(("ours", row.split(",")[0] + ", exact"), {}).get("map", {})
        rows.append(
            (
                f"{kit}, {row}",
                len(errors),
                *(f"{value[key]:.1f}" if key in value else "–" for key in ("seconds", "processor_s")),
                *(
                    f"{value[key] / peer[key]:.2f}" if key in value and key in peer else "–"
                    for key in ("seconds", "processor_s")
                ),
                f"{value['mb']:.0f}" if "mb" in value else "–",
                f"{correlation(errors, theirs):.3f}",
                f"{correlation(errors, exact):.3f}",
                f"{value['mean']:.1f} of {value['of']}" if "mean" in value else "all",
                *(f"{value[key]:.1f}" if value.get(key) else "–" for key in ("reached", "reached_s")),
                f"{value['reached_s'] / peer['processor_s']:.2f}"
                if value.get("reached_s") and "processor_s" in peer
                else "–",
                value.get("failed", ""),
            )
        )
    return f"### {name}\n\n" + measure.table(
        (
            "row",
            "layers",
            "s",
            "processor s",
            "s / AIMET",
            "processor s / AIMET",
            "MB",
            "rank",
            "rank, exact",
            "samples of a layer",
            "18 of 20",
            "processor s until then",
            "/ AIMET",
            "note",
        ),
        rows,
    )


def write_quantized(folder: Path) -> None:
    """Writes the INT8 network as a Q/DQ file, with the ranges of the case."""
    import onnx
    import onnx_ir as ir

    from trt_tui.core.lowering.typed_network import lower_to_typed_network
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision

    network, _, ranges, _ = open_case(folder)
    lowered = lower_to_typed_network(network, PrecisionConfig(Precision.INT8, Precision.FP32), ranges)
    onnx.save(ir.to_proto(lowered.model), folder / "qdq.onnx")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        kit, row, folder = sys.argv[2:]
        ours(Path(folder), row) if kit == "ours" else aimet(Path(folder))
    else:
        arguments = case.parse_arguments(__doc__, NETWORKS, NETWORKS)
        for network in case.list_networks(arguments):
            print(compare(*network, arguments), "\n", flush=True)
