"""From two dumps to a verified bundle, by the commands alone: a residual network and an encoder layer.

What the commands print is held against ONNX Runtime and numpy. `tests.test_readme` does the same with the bundled
network.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import networks
from tests.core.data.test_references import QUICK, results, trtexec_outputs
from tests.texts import first_over
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network

POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"


@dataclass(frozen=True)
class Case:
    """A network that loses accuracy in a precision.

    Attributes:
        make_inputs: Returns the inputs of a number of samples, drawn from a seed.
        count: Samples that are judged, and as many that calibrate.
        batch: Samples of one execution.
        release: The release that the bundle is for.
        search: Further options of the search.
    """

    make_model: Callable[[], onnx.ModelProto]
    make_inputs: Callable[[int, int], dict[str, np.ndarray]]
    precision: str
    count: int
    batch: int
    release: str
    search: tuple[str, ...] = ()


def _images(count: int, seed: int) -> dict[str, np.ndarray]:
    return {"image": networks.random_images(np.random.default_rng(seed), (count, 3, 32, 32))}


def _tokens(count: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((count, 16, 64), dtype=np.float32)}


CASES = {
    "convolutional": Case(networks.small_resnet, _images, "int8", 8, 4, "11", ("--no-free", "--no-ranges")),
    "encoder": Case(networks.attention_block, _tokens, "fp16", 8, 2, "rtx"),
}


def execute(
    model: onnx.ModelProto | str,
    inputs: dict[str, np.ndarray],
    batch: int,
    names: list[str] | None = None,
    *,
    as_written: bool = True,
) -> list[dict[str, np.ndarray]]:
    """Executes a network in ONNX Runtime; returns the tensors of each batch."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # INT8 sums do not saturate without VNNI
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(
        model if isinstance(model, str) else model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = names or [output.name for output in session.get_outputs()]
    count = len(next(iter(inputs.values())))
    return [
        dict(
            zip(
                names,
                session.run(names, {name: array[start : start + batch] for name, array in inputs.items()}),
                strict=True,
            )
        )
        for start in range(0, count, batch)
    ]


def mark_all(model: onnx.ModelProto, tensors: list[str]) -> onnx.ModelProto:
    """A copy of a network with more tensors as outputs, as ``--onnx-outputs '*'`` marks them."""
    marked = onnx.ModelProto.FromString(model.SerializeToString())
    there = {output.name for output in marked.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors if name not in there)
    return marked


def sqnr_db(expected: list[dict[str, np.ndarray]], actual: list[dict[str, np.ndarray]], name: str) -> float:
    one, other = (
        np.concatenate([tensors[name].reshape(-1) for tensors in run]).astype(np.float64) for run in (expected, actual)
    )
    return 10 * np.log10(np.sum(one**2) / np.sum((one - other) ** 2))


def verify(folder: Path) -> tuple[int, str]:
    """Runs verify.sh as a person without a GPU does, with Polygraphy itself."""
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "polygraphy").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{POLYGRAPHY}" "$@"\n')
    (tools / "polygraphy").chmod(0o755)
    done = subprocess.run(
        ["sh", folder / "verify.sh", "--onnxrt"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("placed")
def test_two_dumps_become_a_verified_bundle(run, name):
    case = CASES[name]
    model, inputs = case.make_model(), case.make_inputs(case.count, 0)
    onnx.save(model, "model.onnx")
    np.savez("samples.npz", **inputs)
    np.savez("calibration.npz", **case.make_inputs(case.count, 1))
    data = ("--data", "samples.npz", "--calib-data", "calibration.npz")
    output = model.graph.output[0].name

    # 1. the outputs of the framework and of an engine that lost accuracy: all tensors, and outputs alone
    assert (
        run("export", "model.onnx", *data, "--precision", case.precision, "--format", "onnx", "-o", "engine.onnx")[0]
        == 0
    )
    engine, own = onnx.load("engine.onnx"), [tensor for node in model.graph.node for tensor in node.output]
    made = {tensor for node in engine.graph.node for tensor in node.output}
    common = [tensor for tensor in own if tensor in made]
    framework = execute(mark_all(model, common), inputs, case.batch, common)
    lossy = execute(mark_all(engine, common), inputs, case.batch, common)
    results("framework.json", onnxruntime=framework)
    results("engine.json", trt=lossy)
    Path("engine").mkdir()
    for number, tensors in enumerate(lossy):
        trtexec_outputs(Path("engine") / f"{number}.json", **{output: tensors[output]})
    lost_db = sqnr_db(framework, lossy, output)
    threshold = ("--threshold", f"{10 ** (-lost_db / 20) * 0.99:.9g}")  # just below the error of the output

    # 2. the first tensor over the threshold, and the layer that computes it
    code, text, err = run(
        "compare", "framework.json", "engine.json", "--model", "model.onnx", *threshold, "--json", "all.json"
    )
    record = json.loads(Path("all.json").read_text())
    assert code == 1 and record["tensors"][output]["sqnr_db"] == pytest.approx(lost_db, abs=0.01), err
    assert record["first_over"] in own and first_over(text) == [record["first_over"]]
    code, text, err = run(
        *"compare framework.json engine --model model.onnx".split(),
        *threshold,
        *"--json outputs.json -o fix.json".split(),
    )
    record = json.loads(Path("outputs.json").read_text())
    assert code == 1 and record["tensors"][output]["sqnr_db"] == pytest.approx(lost_db, abs=0.01), err
    assert "in any of them" in text and "Try FP32" not in text
    assert "no fix" in err and not Path("fix.json").exists()

    # 3. which layers lose
    target_db = np.floor(lost_db) + 3
    code, _, err = run(
        "compare",
        "model.onnx",
        *data,
        "--reference",
        "framework.json",
        "--target",
        f"sqnr>={target_db:g}",
        "--no-preview",
        "--json",
        "ranked.json",
    )
    assert code == 1, err
    lossy_run = json.loads(Path("ranked.json").read_text())["runs"][case.precision]
    shares = {group: entry["owns"] for group, entry in lossy_run["groups"].items() if entry.get("owns") is not None}
    simulated_db = lossy_run["outputs"][output]["sqnr_db"]
    assert max(shares.values()) > 0.05 and simulated_db < target_db and simulated_db == pytest.approx(lost_db, abs=3)

    # 4. a mixed config, and what ONNX Runtime makes of it
    code, text, err = run(
        "search",
        "model.onnx",
        *data,
        "--precision",
        case.precision,
        "--tolerance",
        f"sqnr>={target_db:g}",
        "--no-hold-out",
        "--no-preview",
        *case.search,
        "-o",
        "precision.json",
    )
    assert code == 0, err
    exported_db = float(re.search(r"the exported network yields ([\d.]+) dB in ONNX Runtime", text)[1])
    moves = json.loads(Path("precision.json").read_text())["moves"]
    assert moves and exported_db >= target_db - 0.05
    assert name != "convolutional" or {move["kind"] for move in moves} == {"precision"}

    # 5. the bundle is as the search said, by a program of its own
    code, listed, err = run(
        "bundle", "model.onnx", "--config", "precision.json", *data, "--for", case.release, "-o", "bundle"
    )
    assert code == 0 and "bundle/SHA256SUMS" in listed.splitlines(), err
    plain = execute(model, inputs, case.batch)
    mixed = execute("bundle/network.onnx", inputs, case.batch, as_written=False)
    assert sqnr_db(plain, mixed, output) == pytest.approx(exported_db, abs=0.051)
    assert f"| {output} |" in Path("bundle/report.md").read_text()
    code, text = verify(Path("bundle"))
    assert code == 0 and "Pass Rate: 100.00%" in text, text

    # 6. production: the bundle's own network agrees with the config, and another config does not
    production, other = Path("production"), Path("other")
    for folder, executed in ((production, execute("bundle/network.onnx", inputs, case.batch)), (other, plain)):
        folder.mkdir()
        for number, tensors in enumerate(executed):
            trtexec_outputs(folder / f"{number}.json", **tensors)
    judging = ("compare", "model.onnx", "--config", "precision.json", *data, *QUICK, "--outputs")
    code, text, err = run(*judging, production)
    assert code == 0 and "production agrees" in text, text + err
    code, text, err = run(*judging, other)
    assert case.precision == "fp16" or code == 1 and "production differs" in text, text + err

    # 7. a changed file is found, and a changed network even without the checksums
    changed = onnx.load("bundle/network.onnx")
    for weights in changed.graph.initializer:
        if len(weights.dims) >= 2:
            weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(changed, "bundle/network.onnx")
    code, text = verify(Path("bundle"))
    assert code == 1 and "network.onnx: FAILED" in text and "Polygraphy" not in text
    Path("bundle/SHA256SUMS").unlink()
    code, text = verify(Path("bundle"))
    assert code == 1 and "FAILED" in text and "Pass Rate: 100" not in text


def _other_dump(folder: Path, **tensors: np.ndarray) -> tuple[Path, Path]:
    return (
        results(folder / "first.json", run=[tensors]),
        results(folder / "second.json", run=[{name: array + 1 for name, array in tensors.items()}]),
    )


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"scores": np.ones((8, 10), np.float32)}, "no tensor in common"),
        ({"logits": np.ones((8, 11), np.float32)}, "logits has another shape in first.json than in model.onnx"),
        ({"logits": np.ones((8, 10, 4), np.float32)}, "8×10×4 in first.json, batch×10 in model.onnx"),
    ],
)
@pytest.mark.usefixtures("placed")
def test_a_dump_of_another_network_is_refused(run, tmp_path, tensors, said):
    onnx.save(networks.small_resnet(), "model.onnx")
    np.savez("samples.npz", **_images(8, 0))
    first, second = _other_dump(tmp_path, **tensors)
    for command in (
        (first, second, "--model", "model.onnx", "-o", "fix.json"),
        ("model.onnx", "--data", "samples.npz", *QUICK, "--reference", first),
        ("model.onnx", "--data", "samples.npz", *QUICK, "--outputs", first),
    ):
        code, _, err = run("compare", *command)
        assert code == 2 and said in err and "Next: " in err and "Traceback" not in err, err
    assert not Path("fix.json").exists()


@pytest.mark.usefixtures("placed")
def test_a_fix_has_the_layers_between_the_compared_tensors_too(run):
    """Where the dumps lack the tensor of the layer at fault, the layers that it may be are all raised."""
    model = networks.chain(depth=5)
    onnx.save(model, "model.onnx")
    own = [tensor for node in model.graph.node for tensor in node.output]
    inputs = networks.feeds(model, seed=1, n=8)
    values = execute(mark_all(model, own), inputs, 8, own)[0]
    products = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    first, at_fault, after = (node.output[0] for node in (products[0], products[2], products[3]))
    kept = {
        tensor: values[tensor]
        for tensor in own
        if own.index(tensor) <= own.index(first) or own.index(tensor) >= own.index(after)
    }
    wrong = {tensor: array * (1 if own.index(tensor) < own.index(at_fault) else 2) for tensor, array in kept.items()}
    results("first.json", run=[kept])
    results("second.json", run=[wrong])
    code, text, err = run("compare", "first.json", "second.json", "--model", "model.onnx", "-o", "fix.json")
    assert code == 1 and "no tensor in both" in text, err
    network = open_network("model.onnx")
    raised = set(read_config(Path("fix.json"), network).config.find_raised_groups(network))
    assert raised == {network.find_group(products[number].name).name for number in (1, 2, 3)}
    assert "other layers are in FP16" in err
