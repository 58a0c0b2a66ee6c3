"""A last batch with fewer samples than a fixed batch: what is measured equals that of a network with an open batch"""

import json

import numpy as np
import onnx
import pytest

from tests import networks
from tests.cli.test_engine_cli import elsewhere
from tests.measuring import measure_shares
from tests.texts import lacking
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.data.samples import load_samples, mix_samples_into_batches
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis, GatedGraphLoader
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

METRIC = """import numpy as np
def metric(outputs, labels):
    assert len(labels["label"]) == len(outputs["logits"])
    return float((outputs["logits"].argmax(1) == labels["label"]).mean())
"""


def fixed_batch(model, batch):
    """The network with a fixed batch in all inputs and outputs."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    del model.graph.value_info[:]
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = batch
    return model


@pytest.fixture
def pair(tmp_path):
    """Files of a network with an open and a fixed batch of 4, data with labels, and a metric."""
    model = networks.small_resnet(size=8)
    output = model.graph.output[0].name
    rng = np.random.default_rng(3)
    onnx.save(model, tmp_path / "open.onnx")
    onnx.save(fixed_batch(model, 4), tmp_path / "fixed.onnx")
    (tmp_path / "metric.py").write_text(METRIC.replace("logits", output))

    def save(count):
        np.savez(
            tmp_path / "data.npz", image=networks.random_images(rng, (count, 3, 8, 8)), label=rng.integers(0, 4, count)
        )
        return tmp_path / "data.npz"

    return tmp_path, save


@pytest.mark.parametrize("count", [22, 3])
def test_values_are_those_of_the_network_with_an_open_batch(run, pair, count):
    folder, save = pair
    data = save(count)
    calib = folder / "calib.npz"
    np.savez(calib, image=networks.random_images(np.random.default_rng(5), (7, 3, 8, 8)))
    records = {}
    for name in ("open", "fixed"):
        code, _, err = run(
            "compare",
            folder / f"{name}.onnx",
            *f"--data {data} --batch 4 --metric {folder / 'metric.py'}:metric --calib-data {calib}".split(),
            *"--calib-method entropy --json".split(),
            folder / f"{name}.json",
            "--exact",
            "--no-preview",
            "--save-outputs",
            folder / f"{name}.outputs.json:int8,fp32",
        )
        assert code == 0, err
        assert (f"{count}, is not a multiple" in err and "batch of 4" in err) == (name == "fixed")
        records[name] = json.loads((folder / f"{name}.json").read_text())
    for run_name in ("fp16", "int8"):
        first, second = (records[name]["runs"][run_name] for name in ("open", "fixed"))
        for key in ("outputs", "metric", "agreement", "intervals", "samples"):
            assert flat(first.get(key)) == pytest.approx(flat(second.get(key)), rel=1e-3), key
        assert first["samples"] == count
        shares = [{name: entry["owns"] for name, entry in one["groups"].items()} for one in (first, second)]
        assert shares[0] == pytest.approx(shares[1], abs=1e-3)
    saved = [json.loads((folder / f"{name}.outputs.json").read_text()) for name in ("open", "fixed")]
    assert len(json.dumps(saved[0])) == pytest.approx(len(json.dumps(saved[1])), rel=0.01)


@pytest.mark.parametrize(("data_gates", "count"), [(True, 9), (False, 45)])
def test_outputs_of_many_values_and_draws_of_samples(tmp_path, monkeypatch, data_gates, count):
    """Errors that the graph sums itself, and shares of samples that are put into other batches."""
    monkeypatch.setattr(GatedGraphLoader, "uses_gates_as_data", property(lambda loader: data_gates))
    images = np.random.default_rng(2).normal(size=(count, 1, 32, 32)).astype(np.float32)
    config, found = PrecisionConfig(Precision.INT8, Precision.FP32), []
    for model in (networks.unet_small(), fixed_batch(networks.unet_small(), 4)):
        onnx.save(model, tmp_path / "net.onnx")
        network = open_network(tmp_path / "net.onnx")
        np.savez(tmp_path / "d.npz", image=images)
        samples = load_samples(tmp_path / "d.npz", network.inputs, outputs=network.outputs, batch=4)
        with Analysis(network, OnnxRuntimeBackend(), samples, select_judged_outputs(network)) as analysis:
            ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
            *_, partial = analysis.measure_accuracy(config, ranges)
            accuracy = partial.value
            assert accuracy.samples == count
            found.append((accuracy, measure_shares(analysis, config, ranges)))
    (first, one), (second, other) = found
    assert first.outputs["scores"].errors.sqnr_db == pytest.approx(second.outputs["scores"].errors.sqnr_db, abs=1e-3)
    assert first.outputs["scores"].worst_sample == second.outputs["scores"].worst_sample
    assert first.outputs["scores"].errors.max_abs == pytest.approx(second.outputs["scores"].errors.max_abs, rel=1e-4)
    assert {name: share.fraction for name, share in one.items()} == pytest.approx(
        {name: share.fraction for name, share in other.items()}, abs=2e-2
    )


def flat(entry, path=""):
    """The numbers of nested dictionaries and lists, by path."""
    if isinstance(entry, dict):
        return {key: value for name, item in entry.items() for key, value in flat(item, f"{path}/{name}").items()}
    if isinstance(entry, list):
        return {key: value for name, item in enumerate(entry) for key, value in flat(item, f"{path}/{name}").items()}
    return {path: entry} if isinstance(entry, (int, float)) else {}


def test_errors_at_the_layers_leave_the_filled_batch_out(run, pair):
    folder, save = pair
    whole, part = save(10), folder / "part.npz"
    with np.load(whole) as arrays:
        np.savez(part, image=arrays["image"][:8], label=arrays["label"][:8])
    records = []
    for data in (whole, part):
        code, _, err = run(
            *f"compare {folder}/fixed.onnx --data {data} --calib-data {part} --json {folder}/c.json".split(),
            "--no-preview",
        )
        assert code == 0, err
        assert ("of 8 samples" in err) == (data == whole)
        records.append(json.loads((folder / "c.json").read_text())["runs"]["int8"])
    layers = [
        {name: entry["isolated"]["sqnr_db"] for name, entry in record["layers"].items() if "isolated" in entry}
        for record in records
    ]
    assert layers[0] == pytest.approx(layers[1], abs=1e-4) and records[0]["outputs"] != records[1]["outputs"]


def test_an_engine_runs_full_batches(pair):
    folder, save = pair
    done = elsewhere(
        "10.16.1",
        "compare",
        folder / "fixed.onnx",
        "--data",
        save(6),
        "--calib-data",
        save(6),
        *f"--engines --json {folder}/e.json --backend tensorrt".split(),
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads((folder / "e.json").read_text())["runs"]
    engine = next(entry for name, entry in runs.items() if name.endswith("engine") and name != "fp32-engine")
    assert engine["samples"] == 6 and "batch 4" in engine["note"], engine


def test_exports_hold_full_batches(run, pair):
    folder, save = pair
    data = save(6)
    for release in ("11", "8.6"):
        code, _, err = run(
            *f"bundle {folder}/fixed.onnx --data {data} --calib-data {data} --precision int8".split(),
            *f"--for {release} -o {folder}/{release}".split(),
        )
        assert code == 0, err
    sizes = {path.stat().st_size for path in (folder / "11" / "samples").glob("*.in0.bin")}
    assert sizes == {4 * 3 * 8 * 8 * 4}


# -- the samples themselves -----------------------------------------------------------------------------------------


def loaded(tmp_path, count, model=None, **arrays):
    onnx.save(model if model is not None else fixed_batch(networks.small_resnet(), 4), tmp_path / "net.onnx")
    network = open_network(tmp_path / "net.onnx")
    np.savez(
        tmp_path / "d.npz", image=np.arange(count * 3 * 32 * 32, dtype=np.float32).reshape(count, 3, 32, 32), **arrays
    )
    return load_samples(tmp_path / "d.npz", network.inputs, outputs=network.outputs)


def test_counts_are_those_of_the_samples(tmp_path):
    samples = loaded(tmp_path, 10, label=np.arange(10))
    assert (samples.count, len(samples), samples.total_sample_count, samples.batch) == (10, 3, 10, 4)
    assert [samples.is_padded(index) for index in range(3)] == [False, False, True]
    assert samples.read_feed(2)["image"].shape[0] == 2 and samples.read_labels(2)["label"].tolist() == [8, 9]
    full = samples.read_full_feed(2)["image"]
    assert full.shape[0] == 4 == samples.count_rows_of_full_feed(2)
    assert np.array_equal(full[:2], samples.read_feed(2)["image"]) and np.array_equal(full[2:], full[[1, 1]])
    part = samples.select_feeds([2])
    assert part.count == 2 and part.is_padded(0) and part.feed_position(0) == (2, 8)
    mixed = mix_samples_into_batches(samples, [[(0, 1), (2, 1)]])
    assert mixed.is_padded(0) and len(mixed.read_full_feed(0)["image"]) == 4
    assert loaded(tmp_path, 8).padding is None and loaded(tmp_path, 3).count == 3


def test_a_folder_may_end_with_a_remainder_only(tmp_path):
    loaded(tmp_path, 4)
    network = open_network(tmp_path / "net.onnx")
    for name, count in (("a", 4), ("b", 8), ("c", 3)):
        np.savez(tmp_path / f"{name}.npz", image=np.zeros((count, 3, 32, 32), np.float32))
    (tmp_path / "d.npz").unlink()
    samples = load_samples(tmp_path, network.inputs, outputs=network.outputs)
    assert (samples.count, len(samples)) == (15, 4) and samples.is_padded(3)
    np.savez(tmp_path / "d.npz", image=np.zeros((4, 3, 32, 32), np.float32))
    with pytest.raises(InputError, match="3 samples, not a multiple"):
        load_samples(tmp_path, network.inputs, outputs=network.outputs)


def test_a_network_whose_output_has_no_rows_is_refused(tmp_path):
    model = fixed_batch(networks.small_resnet(), 4)
    output = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("ReduceMean", [output.name], ["mean"], keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("mean", 1, []))
    with pytest.raises(InputError, match="not a multiple of the network's batch of 4"):
        loaded(tmp_path, 10, model)
    assert loaded(tmp_path, 8, model).count == 8


def test_a_tensor_without_rows_is_not_judged(run, pair):
    folder, save = pair
    model = onnx.load(folder / "fixed.onnx")
    name = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Transpose", [name], ["turned"], name="turn", perm=[1, 0]))
    model.graph.node.append(onnx.helper.make_node("Transpose", ["turned"], ["back"], name="again", perm=[1, 0]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("back", 1, [4, None]))
    onnx.save(model, folder / "turned.onnx")
    data = save(6)
    code, _, err = run("compare", folder / "turned.onnx", "--data", data, "--judge", "turned", "--no-preview")
    assert code == 2 and not lacking(err, "turned has no", "multiple of 4")
