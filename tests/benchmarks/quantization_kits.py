"""Ours beside AIMET's ONNX kit and ModelOpt: held-out error, seconds, memory, kernels, and layers that stay in floats.

    python -m tests.benchmarks.quantization_kits [encoder] [resnet50] [mobilenetv2] [vit] [detector]
        [MODEL.onnx=DATA.npz] [--directory FOLDER] [--limit S] [--samples N] [--batch B] [--only TEXT] [--resume]

Every other batch calibrates. The others are held out: they lie in a folder that no row reads. All quantized networks
are among FP32. AIMET gets our placement of Q/DQ and our ranges as a Q/DQ file, and its repaired weights are measured in
that file, since AIMET itself quantizes a tensor for all of its readers ("own" in the notes). ModelOpt places and
calibrates for itself. AIMET's AdaRound recommends 10,000 iterations; the row with fewer tells what a full one would
take. "layers in floats" are the products (Conv, MatMul, Gemm) that lost their quantized inputs for a gain on the
calibration samples, with the gain on the held-out samples behind them. "kernels" are the layers that TensorRT-RTX
lists for the engine of the file, with the difference to the start of the same kit. A file that is refused says why.
The kits are installed at the first use into environments of their own in the folder (`kit_case`).
Results are kept as JSON after each row, so that an ended program goes on with ``--resume``. It refuses rows of other
samples, and lists our rows of another state of the program. A row that is deleted from the JSON is measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import kit_case as case

MODULE = "tests.benchmarks.quantization_kits"
NETWORKS = ("encoder", "resnet50", "mobilenetv2", "vit", "detector")
GAINS_DB = (3, 6, 10)
ADAROUND_ITERATIONS = 10_000
LEVEL_DB = 0.05
PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")

ROWS: Mapping[str, Sequence[tuple[str, str]]] = {
    "INT8": (
        ("ours", "INT8 nearest"),
        ("ours", "INT8 entropy ranges"),
        ("ours", "INT8 SmoothQuant"),
        ("ours", "INT8 equalization"),
        ("ours", "INT8 scales"),
        ("ours", "INT8 GPTQ"),
        ("ours", "INT8 bias correction"),
        ("ours", "INT8 free search"),
        ("aimet", "INT8 nearest"),
        ("aimet", "INT8 sequential MSE"),
        ("aimet", "INT8 AdaRound, 50 iterations"),
        ("modelopt", "INT8 max"),
        ("modelopt", "INT8 entropy"),
    ),
    "INT4": (
        ("ours", "INT4 nearest"),
        ("ours", "INT4 equalization"),
        ("ours", "INT4 scales"),
        ("ours", "INT4 GPTQ"),
        ("modelopt", "INT4 RTN"),
        ("modelopt", "INT4 AWQ"),
    ),
    "FP16": (("ours", "FP16"), ("modelopt", "AutoCast")),
    "layers in floats": (("ours", "search"), ("ours", "search with free changes"), ("aimet", "sensitivity, flip")),
}
"""The rows of each part, in the order of the table."""

SLOW = ("INT8 sequential MSE", "INT8 AdaRound, 50 iterations")
"""The rows that are measured last."""

COUNTERPARTS: Mapping[str, str] = {
    "INT8 sequential MSE": "INT8 scales",
    "INT8 AdaRound": "INT8 GPTQ",
    "INT8 max": "INT8 nearest",
    "INT8 entropy": "INT8 entropy ranges",
    "INT4 RTN": "INT4 nearest",
    "INT4 AWQ": "INT4 GPTQ",
    "AutoCast": "FP16",
    "sensitivity, flip": "search",
}
"""Our row for each row of another kit that repairs or quantizes something, by its text up to a comma."""


# -- AIMET -------------------------------------------------------------------------------------------------------------


def aimet(folder: Path, row: str) -> None:
    """Runs in AIMET's environment."""
    import onnx
    from aimet_onnx import QuantizationSimModel, apply_adaround, apply_seq_mse

    def make() -> Any:
        sim = QuantizationSimModel.from_onnx_qdq(onnx.load(folder / "qdq.onnx"))
        for quantizer in sim.qc_quantize_op_dict.values():
            if not quantizer.is_initialized():  # nothing is quantized that the file does not quantize
                quantizer.enabled = False
            quantizer._is_encoding_frozen = False  # a file's scales are frozen, and no method would change them
        return sim

    if row.startswith("sensitivity"):
        _flip_layers(folder, make)
        return
    sim, values = make(), dict[str, Any]()
    made = case.spent()
    if "sequential MSE" in row:
        apply_seq_mse(sim, case.read_feeds(folder, "calib"))
    elif "AdaRound" in row:
        iterations = int(row.split(", ")[1].split()[0]) if ", " in row else ADAROUND_ITERATIONS
        apply_adaround(sim, case.read_feeds(folder, "calib"), num_iterations=iterations)
    _write_weights(folder / "qdq.onnx", sim, folder / "built.onnx")
    values |= case.spent()
    values["alone_s"] = values["processor_s"] - made["processor_s"]
    case.say(**values, ended=True, files={"": "built.onnx"})
    names = [entry.name for entry in sim.session.get_outputs()]
    case.say(own_db=case.sqnr_db(folder / case.HELD_OUT, "judge", lambda feed: sim.session.run(names, feed)))


def _write_weights(start: Path, sim: Any, path: Path) -> None:
    """Writes a Q/DQ file with the weights and weight scales of a simulation in place of its own."""
    import onnx
    from onnx import numpy_helper

    model, changed = onnx.load(start), {entry.name: entry for entry in sim.model.model.graph.initializer}
    constants = {entry.name: entry for entry in model.graph.initializer}
    for node in model.graph.node:
        quantizer = sim.qc_quantize_op_dict.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if quantizer is None or node.input[0] not in constants or not quantizer.enabled:
            continue
        scale = constants[node.input[1]]
        steps = np.array([entry.delta for entry in quantizer.get_encodings()], np.float32)
        scale.CopyFrom(numpy_helper.from_array(steps.reshape(tuple(scale.dims)), scale.name))
        constants[node.input[0]].CopyFrom(changed[node.input[0]])
    onnx.save(model, path)


def _flip_layers(folder: Path, make: Any) -> None:
    """Flips the fewest of the most sensitive layers to FP16 that reach each gain on the calibration samples."""
    from aimet_onnx import analyze_per_layer_sensitivity, float16
    from aimet_onnx.lite_mp import flip_layers_to_higher_precision

    def error_db(session: Any, place: Path = folder, part: str = "calib") -> float:
        names = [entry.name for entry in session.get_outputs()]
        return case.sqnr_db(place, part, lambda feed: session.run(names, feed))

    sim = make()
    sensitivities = analyze_per_layer_sensitivity(sim, error_db)
    values: dict[str, Any] = {**case.spent(), "sensitivity_s": case.spent()["processor_s"], "raised": {}}
    case.say(**values)
    base, count, flipped = error_db(sim.session), len(sensitivities), dict[int, tuple[float, Any]]()

    def flip(layers: int) -> float:
        if layers not in flipped:
            changed = make()
            flip_layers_to_higher_precision(changed, sensitivities, 100 * (layers - 0.5) / count, float16)
            flipped[layers] = error_db(changed.session), changed
        return flipped[layers][0]

    for gain in GAINS_DB:
        few, enough = 0, 1
        while enough < count and flip(enough) < base + gain:
            few, enough = enough, min(2 * enough, count)
        while few + 1 < enough:
            middle = (few + enough) // 2
            few, enough = (few, middle) if flip(middle) >= base + gain else (middle, enough)
        if flip(enough) < base + gain:
            values["raised"][gain] = "not reached"
            continue
        values["raised"][gain] = {"layers": enough, "of": count, "file": f"flip{gain}.onnx"}
        values |= case.spent()
        _drop_flipped(folder / "qdq.onnx", flipped[enough][1], folder / f"flip{gain}.onnx")
        case.say(**values)
    case.say(ended=True)
    held_out = folder / case.HELD_OUT
    start_db = error_db(sim.session, held_out, "judge")
    for found in values["raised"].values():
        if isinstance(found, dict):
            found["gain_db"] = error_db(flipped[found["layers"]][1].session, held_out, "judge") - start_db
    case.say(**values, db=start_db)


def _drop_flipped(start: Path, sim: Any, path: Path) -> None:
    """Writes a Q/DQ file without the Q/DQ pairs of tensors that a simulation does not quantize to INT8 any more."""
    import onnx

    model = onnx.load(start)
    quantizers = {node.output[0]: node for node in model.graph.node if node.op_type == "QuantizeLinear"}
    floats = {}
    for node in model.graph.node:
        source = quantizers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        quantizer = sim.qc_quantize_op_dict.get(source.input[0]) if source is not None else None
        if quantizer is not None and quantizer.enabled and quantizer.get_encodings() is None:
            floats[node.output[0]] = source.input[0]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = floats.get(name, name)
    kept = [node for node in model.graph.node if not (node.op_type == "DequantizeLinear" and node.output[0] in floats)]
    read = {name for node in kept for name in node.input}
    del model.graph.node[:]
    model.graph.node.extend(node for node in kept if node.op_type != "QuantizeLinear" or node.output[0] in read)
    onnx.save(model, path)


# -- ModelOpt ----------------------------------------------------------------------------------------------------------


def modelopt(folder: Path, row: str) -> None:
    """Runs in ModelOpt's environment."""
    feeds, out = case.read_feeds(folder, "calib"), folder / "built.onnx"
    data = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    if row.startswith("INT8"):
        from modelopt.onnx.quantization import quantize

        made = case.spent()
        quantize(
            str(folder / "model.onnx"),
            quantize_mode="int8",
            calibration_data=data,
            calibration_method=row.split()[1],
            output_path=str(out),
            high_precision_dtype="fp32",
            calibration_eps=["cpu"],
        )
    elif row.startswith("INT4"):
        import onnx
        from modelopt.onnx.quantization.int4 import quantize as quantize_int4

        made = case.spent()
        method = {"AWQ": "awq_clip", "RTN": "rtn_dq"}[row.split()[1]]
        onnx.save(
            quantize_int4(
                str(folder / "opset21.onnx"),
                calibration_method=method,
                calibration_data_reader=_Reader(feeds),
                calibration_eps=["cpu"],
            ),
            out,
        )
    else:
        import onnx
        from modelopt.onnx.autocast import convert_to_mixed_precision

        made = case.spent()
        np.savez(folder / "one.npz", **feeds[0])
        onnx.save(
            convert_to_mixed_precision(
                str(folder / "model.onnx"), low_precision_type="fp16", calibration_data=str(folder / "one.npz")
            ),
            out,
        )
    values = case.spent()
    case.say(**values, alone_s=values["processor_s"] - made["processor_s"], ended=True, files={"": "built.onnx"})


class _Reader:
    """ONNX Runtime's CalibrationDataReader: one feed after the other."""

    def __init__(self, feeds: case.Feeds) -> None:
        self._feeds, self._next = feeds, iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._next, None)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter(self._feeds)

    def rewind(self) -> None:
        self._next = iter(self._feeds)


# -- ours --------------------------------------------------------------------------------------------------------------


def open_case(folder: Path, method: str = "minmax") -> tuple[Any, ...]:
    """The network, the calibration samples, and the ranges by a method, which are measured once and kept."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.calibration.calibration import calibrate
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.network.network import open_network

    backend = OnnxRuntimeBackend("cpu")
    network = open_network(folder / "model.onnx", lambda: backend)
    batch = next(iter(case.read_feeds(folder, "calib")[0].values())).shape[0]
    samples, known = load_samples(folder / "calib.npz", network.inputs, batch=batch), folder / f"ranges-{method}.json"
    if not known.exists():
        ranges = calibrate(network.model, network.calibrated_tensors, samples, backend, method=method).ranges
        known.write_text(json.dumps({name: float(amax) for name, amax in ranges.items()}))
    return network, samples, json.loads(known.read_text()), backend


def ours(folder: Path, row: str) -> None:
    import onnx
    import onnx_ir as ir

    from trt_tui.core.lowering.typed_network import lower_to_typed_network
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision

    if "search" in row:
        _search(folder, row)
        return
    network, samples, ranges, backend = open_case(folder, "entropy" if "entropy" in row else "minmax")
    made, values = case.spent(), dict[str, Any]()
    precision = Precision(row.split()[0].lower())
    config = (
        PrecisionConfig(precision, Precision.FP32)
        if precision is not Precision.FP16
        else (PrecisionConfig.from_precision(precision))
    )
    changed = _repair(row, network, config, samples, ranges, backend, values)
    onnx.save(ir.to_proto(lower_to_typed_network(network, changed, ranges).model), folder / "built.onnx")
    values |= case.spent()
    values["alone_s"] = values["processor_s"] - made["processor_s"]
    case.say(**values, ended=True, files={"": "built.onnx"})
    if row == "INT8 nearest":  # what the other kits start with
        onnx.save(onnx.load(folder / "built.onnx"), folder / "qdq.onnx")
        onnx.save(ir.to_proto(network.convert_model_to_opset(21)), folder / "opset21.onnx")  # ModelOpt's INT4 needs it


def _repair(
    row: str, network: Any, config: Any, samples: Any, ranges: Mapping[str, float], backend: Any, values: dict[str, Any]
) -> Any:
    """The config with the moves of a row; notes their number, or the reason why there are none."""
    from trt_tui.core.measure.weight_rounding import measure_roundings
    from trt_tui.core.measure.zero_cost_kinds import (
        ZERO_COST_KINDS,
        add_zero_cost_moves,
    )

    kinds = [kind for kind in ZERO_COST_KINDS if kind.title in ("SmoothQuant", "equalization", "bias correction")]
    if (kind := next((kind for kind in kinds if kind.title in row), None)) is not None:
        return _choose_proposal(kind, network, config, samples, ranges, backend, values)
    if (method := next((method for method in ("scales", "GPTQ") if method in row), None)) is not None:
        found = measure_roundings(network, config, ranges, network.groups, samples, backend, methods=(method,))
        if found:
            values["note"] = f"{len(found[0].moves)} layers"
            return add_zero_cost_moves(config, network, found[0].moves)
        values["note"] = "not offered"
    return config


def _choose_proposal(
    kind: Any,
    network: Any,
    config: Any,
    samples: Any,
    ranges: Mapping[str, float],
    backend: Any,
    values: dict[str, Any],
) -> Any:
    """The proposal of a kind with the least error on the calibration samples; the config if none reduces it."""
    from trt_tui.core.measure.judged_outputs import select_judged_outputs
    from trt_tui.core.measure.simulation import Analysis
    from trt_tui.core.measure.zero_cost_kinds import ProposalContext, TrialBudget

    feeds = tuple(range(len(samples)))
    with Analysis(network, backend, samples, select_judged_outputs(network), boundary_type=config.other) as analysis:

        def measure_errors(changed: Any, feeds: Sequence[int], progress: Any) -> Any:
            *_, last = analysis.measure_noise_by_sample(changed, ranges, feeds)
            return last.value

        def judged_error(changed: Any) -> float:
            noise, signal = (sums.sum(0) for sums in measure_errors(changed, feeds, None))
            return float((noise / signal).max())

        context = ProposalContext(
            network,
            config,
            network.groups,
            samples,
            backend,
            ranges,
            "minmax",
            "user",
            False,
            True,
            {},
            samples,
            feeds,
            measure_errors,
            TrialBudget(),
            lambda title, changed, result_type, measure, subjects=(): measure(),
            lambda: None,
            lambda title: lambda done, total: None,
        )
        proposals = list(kind.make_proposals(context))
        start = judged_error(config)
        best = min(proposals, key=lambda proposal: judged_error(proposal.config), default=None)
        if best is None or judged_error(best.config) >= start:
            values["note"] = "not offered: " + ("no proposal improves" if proposals else "no layer can have it")
            return config
    values["note"] = f"{best.label}, {len(best.config.moves)} moves"
    return best.config


def _search(folder: Path, row: str) -> None:
    """What ``trt-tui search`` finds on the calibration samples from an empty cache on, and writes as a network."""
    is_free_only = row.endswith("free search")
    start_db = case.file_db(folder, "calib", folder / "qdq.onnx")
    values: dict[str, Any] = {} if is_free_only else {"raised": {}}
    for gain in (None,) if is_free_only else GAINS_DB:
        config, typed = folder / f"search{gain}.json", folder / f"search{gain}.onnx"
        options = (
            ["--max-fp32", "0", "--ranges", "--free"]
            if is_free_only
            else (["--ranges", "--free"] if "free" in row else ["--no-ranges", "--no-free"])
        )
        data = ["--data", str(folder / "calib.npz"), "--calib-data", str(folder / "calib.npz")]
        tolerance = 200.0 if gain is None else start_db + gain
        done = _run_command(
            "search",
            str(folder / "model.onnx"),
            *data,
            "--other",
            "fp32",
            "--no-preview",
            "--max-builds",
            "0",
            "--tolerance",
            f"sqnr>={tolerance:.3f}",
            "-o",
            str(config),
            *options,
        )
        _run_command("build", str(folder / "model.onnx"), "--config", str(config), *data, "-o", str(typed))
        if gain is None:
            values["files"] = {"": typed.name}
        elif done.returncode:
            values["raised"][gain] = "not reached"
        else:
            values["raised"][gain] = {"file": typed.name}
        values |= case.spent()
        case.say(**values)
    case.say(ended=True)


def _run_command(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "trt_tui", *words], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{words[0]}: " + ((done.stderr or done.stdout).strip().splitlines() or ["?"])[-1])
    return done


# -- judging files -----------------------------------------------------------------------------------------------------


def judge(folder: Path, name: str) -> None:
    """Says the held-out error of a file, its products with quantized inputs, and its kernels."""
    import onnx_ir as ir

    from tests import rtx

    model = ir.load(folder / name)
    quantized, total = count_quantized_products(model)
    case.say(quantized=quantized, products=total)
    refusal = ""
    try:
        case.say(db=case.file_db(folder / case.HELD_OUT, "judge", folder / name))
    except Exception as error:  # noqa: BLE001  -- a row says why
        refusal = f"ONNX Runtime: {_first_line(error)}; "
    try:
        case.say(kernels=len(rtx.layers(model).splitlines()) - 1)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        refusal += f"TensorRT-RTX: {_first_line(error)}"
    if refusal:
        case.say(refused=refusal)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def count_quantized_products(model: Any) -> tuple[int, int]:
    """The products that read a DequantizeLinear at every input that they multiply, or at their weight for INT4."""
    import onnx_ir as ir

    def is_quantized(value: Any) -> bool:
        node = value.producer() if value is not None else None
        while node is not None and node.op_type in ("Transpose", "Reshape", "Cast", "Squeeze", "Unsqueeze"):
            value = node.inputs[0]
            node = value.producer()
        return node is not None and node.op_type == "DequantizeLinear"

    def holds_int4(value: Any) -> bool:
        node = value.producer()
        while node is not None and node.op_type != "DequantizeLinear":
            node = node.inputs[0].producer() if node.inputs else None
        return node is not None and node.inputs[0].dtype in (ir.DataType.INT4, ir.DataType.UINT4)

    products = [node for node in model.graph if node.op_type in PRODUCTS]
    count = sum(
        all(is_quantized(value) for value in node.inputs[:2]) or holds_int4(node.inputs[1]) for node in products
    )
    return count, len(products)


# -- the table ---------------------------------------------------------------------------------------------------------


def measure_row(kit: str, row: str, folder: Path, directory: Path, limit_s: float) -> dict[str, Any]:
    """The values of a row, with what `judge` says of its files."""
    values = case.run_row(MODULE, kit, row, folder, directory, limit_s)
    for name in values.pop("files", {}).values():
        judged = case.run_process([sys.executable, "-m", MODULE, "--judge", str(folder), name], 300)
        judged.pop("mb")
        values |= judged
    for found in values.get("raised", {}).values():
        if isinstance(found, dict):
            found |= case.run_process([sys.executable, "-m", MODULE, "--judge", str(folder), found["file"]], 300)
    return values


def measure_network(name: str, model: Path, data: Path, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The values of all rows of a network by kit and row, which are stored after each."""
    from trt_tui.core.source_hash import source_sha256

    folder, stored = arguments.directory / f"case-{model.stem}", arguments.directory / f"rows-{model.stem}.json"
    results: dict[str, dict[str, Any]] = {}
    if arguments.resume and stored.exists() and (folder / "qdq.onnx").exists():
        if difference := case.find_changed_samples(data, folder, arguments.batch, arguments.samples):
            sys.exit(
                f"The rows in {stored} were measured with other samples: {difference}. Give the --batch and "
                "--samples of those rows, or leave --resume out to measure all rows again."
            )
        results = json.loads(stored.read_text())
    else:
        case.write_case(model, data, folder, arguments.batch, arguments.samples)
    for kit, row in sorted((entry for rows in ROWS.values() for entry in rows), key=lambda entry: entry[1] in SLOW):
        key = f"{kit}, {row}"
        if key not in results and row[:4] == "INT4" and results.get("ours, INT4 nearest", {}).get("quantized") == 0:
            results[key] = {"failed": "no layer of this network takes INT4"}
        if key in results or row != "INT8 nearest" and not any(text in key for text in arguments.only or [""]):
            continue
        results[key] = measure_row(kit, row, folder, arguments.directory, arguments.limit)
        if kit == "ours":
            results[key]["source"] = source_sha256()
        stored.write_text(json.dumps(results, indent=1))
        print(f"  {name}: {key}: {results[key]}", file=sys.stderr, flush=True)
    return results


def format_network(name: str, results: Mapping[str, dict[str, Any]]) -> str:
    """The table of a network, and what the program checks of our files."""
    from tests.benchmarks import measure

    rows = []
    for key in (f"{kit}, {row}" for entries in ROWS.values() for kit, row in entries):
        value = results.get(key, {"failed": "not measured"})
        rows.append(
            (
                key,
                *(
                    f"{value[field]:.{digits}f}" if field in value else "–"
                    for field, digits in (("db", 2), ("seconds", 0), ("processor_s", 1), ("alone_s", 1), ("mb", 0))
                ),
                _kernels_text(value, find_start(key, results) if key in results else {}),
                f"{value['quantized']} of {value['products']}" if "quantized" in value else "–",
                _raised_text(value, results.get("ours, INT8 nearest", {})),
                "; ".join(
                    str(text)
                    for text in (
                        value.get("failed"),
                        value.get("refused"),
                        value.get("note"),
                        f"own {value['own_db']:.2f} dB" if "own_db" in value else None,
                    )
                    if text
                ),
            )
        )
    return "\n".join(
        [
            f"### {name}",
            "",
            measure.table(
                (
                    "row",
                    "dB held out",
                    "s",
                    "processor s",
                    "of it the repair",
                    "MB",
                    "kernels",
                    "quantized products",
                    "layers in floats",
                    "note",
                ),
                rows,
            ),
            "",
            check_files(results),
            list_older_rows(results),
        ]
    )


def list_older_rows(results: Mapping[str, dict[str, Any]]) -> str:
    """Which of our rows another state of the program measured, as `--resume` keeps them."""
    from trt_tui.core.source_hash import source_sha256

    older = [
        key
        for key, value in results.items()
        if key.startswith("ours") and "processor_s" in value and value.get("source") != source_sha256()
    ]
    return f"Our rows that another state of the program measured: {'; '.join(older) or 'none'}."


def check_files(results: Mapping[str, dict[str, Any]]) -> str:
    """Which of our files run in ONNX Runtime and build with TensorRT-RTX, and which have more kernels than before."""
    repaired = {key: value for key, value in results.items() if key.startswith("ours") and "quantized" in value}
    whole = [key for key, value in repaired.items() if "db" in value and "kernels" in value]
    more = [
        f"{key} ({added:+})"
        for key in whole
        if (added := repaired[key]["kernels"] - find_start(key, results).get("kernels", 0)) > 0
    ]
    return (
        f"Our files that run in ONNX Runtime and build with TensorRT-RTX: {len(whole)} of {len(repaired)}. "
        f"With more kernels than before: {', '.join(more) or 'none'}."
    )


def find_start(key: str, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The values of the row that a kit's row repairs; those of the row itself if it repairs none."""
    kit, _, row = key.partition(", ")
    start = (
        {"INT8": "INT8 max", "INT4": "INT4 RTN"}
        if kit == "modelopt"
        else {"INT8": "INT8 nearest", "INT4": "INT4 nearest"}
    )
    return results.get(f"{kit}, {start.get(row.split()[0], row)}", results[key])


def _kernels_text(value: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    if "kernels" not in value:
        return "–"
    added = value["kernels"] - start.get("kernels", value["kernels"])
    return f"{value['kernels']}" + (f" ({added:+})" if added else "")


def count_raised(value: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, tuple[int | None, float | None]]:
    """The products that lost their quantized inputs for each gain, and the gain in dB on the held-out samples."""
    counts: dict[str, tuple[int | None, float | None]] = {}
    for gain, found in value.get("raised", {}).items():
        is_reached = isinstance(found, dict) and "quantized" in found and "quantized" in start
        held_out = found.get("gain_db", found["db"] - start["db"] if "db" in found else None) if is_reached else None
        counts[gain] = (start["quantized"] - found["quantized"] if is_reached else None), held_out
    return counts


def _raised_text(value: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    return (
        ", ".join(
            f"+{gain}: not reached"
            if count is None
            else f"+{gain}: {count}" + ("" if held_out is None else f" ({held_out:+.1f})")
            for gain, (count, held_out) in count_raised(value, start).items()
        )
        or "–"
    )


def format_summary(by_network: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    """Tables of all networks: decibels, processor seconds with memory, layers in floats, and ours beside theirs."""
    from tests.benchmarks import measure

    keys = [f"{kit}, {row}" for entries in ROWS.values() for kit, row in entries]

    def make_table(
        title: str, chosen: Sequence[str], format_cell: Callable[[dict[str, Any], dict[str, Any]], str]
    ) -> str:
        return measure.table(
            (title, *by_network),
            [
                (
                    key,
                    *(
                        format_cell(results.get(key, {}), results.get("ours, INT8 nearest", {}))
                        for results in by_network.values()
                    ),
                )
                for key in chosen
            ],
        )

    searches = [f"{kit}, {row}" for kit, row in ROWS["layers in floats"]]
    return "\n\n".join(
        [
            make_table(
                "dB on held-out samples",
                [key for key in keys if key not in searches],
                lambda value, _: f"{value['db']:.2f}" if np.isfinite(value.get("db", np.nan)) else find_gap_text(value),
            ),
            make_table(
                "processor seconds, MB",
                keys,
                lambda value, _: (
                    f"{value['processor_s']:.1f}, {value['mb']:.0f}" if "processor_s" in value else find_gap_text(value)
                ),
            ),
            make_table("layers in floats (gain held out)", searches, _raised_text),
            compare_kits(by_network),
        ]
    )


def find_gap_text(value: Mapping[str, Any]) -> str:
    """The short reason why a row has no value."""
    if not value:
        return "not measured"
    if value.get("quantized") == 0 or "takes INT4" in value.get("failed", ""):
        return "no such layer"
    return "refused" if "refused" in value else "not done"


def compare_kits(by_network: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    """Our rows beside those of the other kits: decibels or layers, and the ratio of processor seconds.

    A row is led if ours has more decibels, or fewer layers for a gain. It is level if both have as many layers, or
    decibels within `LEVEL_DB`.
    """
    from tests.benchmarks import measure

    outcomes, rows = Counter[str](), []
    for theirs, mine in (
        ((kit, row), COUNTERPARTS.get(row, COUNTERPARTS.get(row.split(",")[0], "")))
        for entries in ROWS.values()
        for kit, row in entries
        if kit != "ours"
    ):
        if not mine:
            continue
        cells, ratios = [], []
        for results in by_network.values():
            first, second = results.get(", ".join(theirs), {}), results.get(f"ours, {mine}", {})
            cell, differences = _compare_rows(first, second, results.get("ours, INT8 nearest", {}))
            cells.append(cell)
            outcomes.update(
                "led" if difference > 0 else "level" if difference == 0 else "lost" for difference in differences
            )
            ratios.append(
                f"{second['processor_s'] / first['processor_s']:.2f}"
                if ("processor_s" in first and "processor_s" in second)
                else "–"
            )
        rows.append((f"{mine} : {', '.join(theirs)}", *cells, ", ".join(ratios)))
    return measure.table(("ours : theirs", *by_network, "processor seconds, ours / theirs, by network"), rows) + (
        f"\n\nCompared values: {outcomes.total()}. Led: {outcomes['led']}, level: {outcomes['level']}, lost: "
        f"{outcomes['lost']}."
    )


def _compare_rows(
    theirs: Mapping[str, Any], mine: Mapping[str, Any], start: Mapping[str, Any]
) -> tuple[str, list[float]]:
    """The text of both values, and our leads: a positive number for each value by which ours is better."""
    if "raised" in theirs and "raised" in mine:
        pairs = [
            (gain, count_raised(mine, start).get(gain, (None, None))[0], count)
            for gain, (count, _) in count_raised(theirs, start).items()
        ]
        return ", ".join(
            f"+{gain}: {'–' if ours is None else ours} : {'–' if count is None else count}"
            for gain, ours, count in pairs
        ), [
            (math.inf if count is None else count) - (math.inf if ours is None else ours)
            for _, ours, count in pairs
            if ours is not None or count is not None
        ]
    if "db" in theirs and "db" in mine and np.isfinite([theirs["db"], mine["db"]]).all():
        lead = mine["db"] - theirs["db"]
        return f"{mine['db']:.2f} : {theirs['db']:.2f}", [0 if abs(lead) <= LEVEL_DB else lead]
    return "–", []


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        {"ours": ours, "aimet": aimet, "modelopt": modelopt}[sys.argv[2]](Path(sys.argv[4]), sys.argv[3])
    elif sys.argv[1:2] == ["--judge"]:
        judge(Path(sys.argv[2]), sys.argv[3])
    else:
        arguments = case.parse_arguments(__doc__, NETWORKS, NETWORKS[:1])
        by_network = {}
        for name, model, data in case.list_networks(arguments):
            by_network[name] = measure_network(name, model, data, arguments)
            print(format_network(name, by_network[name]), "\n", flush=True)
        print(format_summary(by_network))
