"""trt_tui.jobs.store: stored results are of the files as they are, of the rules as they are, and undamaged"""

import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_tui
from tests import networks
from tests.driven import DrivenWorker, of, save_mlp
from trt_tui.core import source_hash
from trt_tui.core.data import input_files
from trt_tui.core.data.input_files import FileStamps, cached_file_sha256, is_stamp_trustworthy, read_file_stamp
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import FileReplacedError
from trt_tui.files.reading import sampled_file_sha256
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs import store as store_module
from trt_tui.jobs.store import EngineCache, FileCache, ResultCache, ResultStore

INT8 = PrecisionConfig.from_precision(Precision.INT8)
PACKAGE = Path(trt_tui.__file__).parent
RULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for folder in ("core/lowering", "core/network", "core/measure")
    for path in (PACKAGE / folder).rglob("*.py")
)


def put_in_place(path: str | Path, content: bytes) -> None:
    """Writes other content of the same size into a file and sets its times back, as ``rsync --inplace -t`` does."""
    before = os.stat(path)
    assert len(content) == before.st_size
    with open(path, "r+b") as stream:
        stream.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


@pytest.fixture
def old_files(monkeypatch):
    """Files that a test has written count as old: their stamps are trusted, and nothing is remembered of other tests"""
    monkeypatch.setattr(input_files, "MIN_SETTLED_AGE_S", 0.0)
    monkeypatch.setattr(input_files, "_digest_cache", {})


def measured(folder, options):
    """The verdict of an INT8 run in a new process with the results of earlier ones in ``folder``."""
    worker = DrivenWorker(folder)
    worker.answer(rq.OpenNetwork(options))
    return of(worker.answer(rq.MeasureWhatIf(INT8)), ev.AccuracyMeasured)[-1].accuracy


def retrained(options, beside):
    """The files of the same network with other weights, by path."""
    folder = Path(options.model).parent / "other"
    folder.mkdir()
    save(networks.mlp(7), folder / Path(options.model).name, beside)
    return {path.parent.parent / path.name: path.read_bytes() for path in folder.iterdir()}


def save(model, path, beside):
    if beside:
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    else:
        onnx.save(model, path)


@pytest.mark.usefixtures("old_files")
@pytest.mark.parametrize("beside", [False, True], ids=["in the file", "beside it"])
@pytest.mark.parametrize("most", [input_files.MAX_HASHED_BYTES, 0], ids=["small", "large"])
def test_weights_replaced_in_place_with_their_size_and_time_are_measured_again(tmp_path, monkeypatch, beside, most):
    monkeypatch.setattr(store_module, "MAX_HASHED_BYTES", most)
    options = save_mlp(tmp_path)
    save(networks.mlp(0), options.model, beside)
    before = measured(tmp_path / "cache", options)
    assert measured(tmp_path / "cache", options) == before
    for path, content in retrained(options, beside).items():
        put_in_place(path, content)
    assert measured(tmp_path / "cache", options) == measured(tmp_path / "empty", options) != before


@pytest.mark.usefixtures("old_files")
def test_a_large_network_is_hashed_once_while_it_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_HASHED_BYTES", 0)
    network, store = open_network(save_mlp(tmp_path).model), ResultStore(ResultCache(tmp_path / "results"))
    hashed = []
    monkeypatch.setattr(type(network), "sha256", lambda self: hashed.append(1) or "ab" * 32)
    assert [store.network_sha256(network) for _ in range(3)] == ["ab" * 32] * 3 and len(hashed) == 1
    monkeypatch.setattr(
        input_files, "MIN_SETTLED_AGE_S", 3600.0
    )  # a file that was written just now may change unnoticed
    os.utime(network.path)
    assert [store.network_sha256(network) for _ in range(2)] == ["ab" * 32] * 2 and len(hashed) == 3


@pytest.mark.usefixtures("old_files")
def test_whatever_is_replaced_in_place_while_it_is_open_ends_the_job_and_is_measured_again(tmp_path):
    """Data, weights, a metric and what it reads, and the outputs that errors are taken against"""
    options = save_mlp(tmp_path)
    x = np.load(options.data)["x"]
    np.savez(options.data, x=x, y=np.zeros(16))
    np.savez(tmp_path / "framework.npz", **{"y": np.ones((16, 4), np.float32)})
    (tmp_path / "metric.py").write_text(
        "import numpy as np\nTRUTH = np.load('"
        + str(tmp_path / "truth.npy")
        + "')\ndef score(outputs, labels):\n    return float(1 * TRUTH)\n"
    )
    np.save(tmp_path / "truth.npy", np.float64(3))
    output = onnx.load(options.model).graph.output[0].name
    rows = [dimension.dim_value for dimension in onnx.load(options.model).graph.output[0].type.tensor_type.shape.dim]
    np.savez(tmp_path / "framework.npz", **{output: np.ones((16, *rows[1:]), np.float32)})
    options = replace(options, metric=f"{tmp_path / 'metric.py'}:score", reference=str(tmp_path / "framework.npz"))

    def other_npz(path, **changed):
        with np.load(path) as data:
            np.savez(tmp_path / "new.npz", **{**data, **changed})
        return (tmp_path / "new.npz").read_bytes()

    changes = {
        "mlp.npz": lambda path: other_npz(path, x=x[::-1]),
        "metric.py": lambda path: path.read_bytes().replace(b"1 *", b"2 *"),
        "truth.npy": lambda path: np.save(tmp_path / "new.npy", np.float64(5)) or (tmp_path / "new.npy").read_bytes(),
        "framework.npz": lambda path: other_npz(path, **{output: np.full((16, *rows[1:]), 2, np.float32)}),
        "mlp.onnx": lambda path: retrained(options, False)[path],
    }
    worker = DrivenWorker(tmp_path / "cache")
    for name, change in changes.items():
        worker.answer(rq.OpenNetwork(options))
        before = of(worker.answer(rq.MeasureWhatIf(INT8)), ev.AccuracyMeasured)[-1].accuracy
        put_in_place(tmp_path / name, change(tmp_path / name))
        ended = worker.answer(rq.MeasureWhatIf(INT8))[-1]
        assert isinstance(ended.error, FileReplacedError) and ended.error.files == (name,)
        assert measured(tmp_path / "cache", options) == measured(tmp_path / f"without {name}", options) != before, name


@pytest.mark.usefixtures("old_files")
def test_nothing_is_stored_of_a_file_that_was_replaced_while_it_was_measured(tmp_path):
    options = save_mlp(tmp_path)
    worker = DrivenWorker(tmp_path / "cache")
    worker.answer(rq.OpenNetwork(options))
    worker.wire.on_event = lambda event: (
        put_in_place(options.model, next(iter(retrained(options, False).values())))
        if isinstance(event, ev.JobStarted)
        else None
    )
    assert isinstance(worker.answer(rq.MeasureWhatIf(INT8))[-1].error, FileReplacedError)
    assert measured(tmp_path / "cache", options) == measured(tmp_path / "empty", options)


@pytest.mark.usefixtures("old_files")
def test_permissions_and_links_alone_replace_nothing(tmp_path):
    options = save_mlp(tmp_path)
    worker = DrivenWorker(tmp_path / "cache")
    worker.answer(rq.OpenNetwork(options))
    known = read_file_stamp(options.model)
    os.chmod(options.model, 0o600)
    os.link(options.data, tmp_path / "link.npz")
    assert read_file_stamp(options.model) != known
    assert isinstance(worker.answer(rq.MeasureWhatIf(INT8))[-1], ev.JobDone)


def test_a_young_file_is_read_again(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a")
    files = FileStamps.from_paths([path])
    assert not is_stamp_trustworthy(read_file_stamp(path)) and not is_stamp_trustworthy(None)
    first = cached_file_sha256(path)
    path.write_text("b")
    os.utime(path, ns=files.stamps[0][1][2:])
    assert cached_file_sha256(path) != first and files.find_replaced_files() == (str(path),)


def test_samples_of_a_large_file_see_retrained_weights_and_its_ends(tmp_path):
    path, rng = tmp_path / "w.bin", np.random.default_rng(0)
    weights = rng.bytes(12 << 20)
    path.write_bytes(weights)
    known = sampled_file_sha256(path)
    assert known == sampled_file_sha256(path) != ""
    for other in (
        rng.bytes(12 << 20),
        weights[:-1] + bytes([weights[-1] ^ 1]),
        bytes([weights[0] ^ 1]) + weights[1:],
        weights[:-1],
    ):
        path.write_bytes(other)
        assert sampled_file_sha256(path) != known
    assert sampled_file_sha256(tmp_path / "none") == ""


# -- damage ------------------------------------------------------------------------------------------------------------


def records(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("place", [0, 40, -1], ids=["in its checksum", "in its content", "at its end"])
def test_a_result_with_a_flipped_bit_is_measured_again_and_the_log_says_so(tmp_path, capsys, place):
    options = save_mlp(tmp_path)
    before = measured(tmp_path / "cache", options)
    damaged = records(tmp_path / "cache")
    assert damaged
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[place] ^= 4
        path.write_bytes(content)
    capsys.readouterr()
    assert measured(tmp_path / "cache", options) == before
    said = capsys.readouterr().err
    assert str(damaged[0]) in said and "checksum" in said and "measured again" in said
    assert measured(tmp_path / "cache", options) == before and not capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x"),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
    ],
    ids=["empty", "short", "cut"],
)
def test_every_kind_of_record_is_checked(tmp_path, capsys, damage):
    cache = EngineCache(tmp_path / "engines")
    key = FileCache.make_key("engine")
    cache.write(key, b"plan" * 100)
    assert cache.read(key) == b"plan" * 100
    damage(records(tmp_path / "engines")[0])
    assert cache.read(key) is None and "checksum" in capsys.readouterr().err


def test_a_record_under_the_name_of_another_is_none(tmp_path):
    cache = FileCache(tmp_path, 1 << 20)
    cache.write(FileCache.make_key("first"), b"1")
    cache.write(FileCache.make_key("second"), b"2")
    shutil.copy(
        cache._stored_file_path(FileCache.make_key("first")), cache._stored_file_path(FileCache.make_key("second"))
    )
    assert cache.read(FileCache.make_key("second")) is None and cache.read(FileCache.make_key("first")) == b"1"


def test_a_read_only_cache_is_read(tmp_path, monkeypatch):
    cache = ResultCache(tmp_path)
    key = FileCache.make_key("shared")
    cache.put(key, [1, 2])

    def refuse(*arguments, **more):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.get(key, list[int]) == [1, 2]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_changed_rule_changes_every_key(tmp_path, monkeypatch):
    """Of fusion, lowering and measuring; what is shown and typed decides no figure"""
    package = tmp_path / "trt_tui"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.json", "*.onnx", "*.npz"))
    known = source_hash.hash_source(package)
    assert known == source_hash.source_sha256() and len(RULES) > 60
    found = {known}
    for name in RULES[::12]:
        path = package / name
        source = path.read_bytes()
        path.write_bytes(source.replace(b" = ", b" =  ", 1) + b"\n")
        found.add(source_hash.hash_source(package))
        path.write_bytes(source)
    assert len(found) == 1 + len(RULES[::12])
    for changed, other in (("core/lowering/new_rule.py", True), ("tui/app.py", False)):
        (package / changed).write_text("")
        assert (source_hash.hash_source(package) != known) is other
        (package / changed).unlink()
        assert other or source_hash.hash_source(package) == known
    key = FileCache.make_key("result")
    monkeypatch.setattr(store_module, "source_sha256", lambda: "of other rules")
    assert FileCache.make_key("result") != key


def test_every_stored_result_is_of_one_arithmetic_and_timing_caches_outlive_it(tmp_path, monkeypatch):
    options = save_mlp(tmp_path)

    def stored():
        before = set(records(tmp_path / "stored"))
        worker = DrivenWorker(tmp_path / "stored")
        worker.answer(rq.OpenNetwork(options))
        worker.answer(rq.MeasureWhatIf(INT8))
        return len(set(records(tmp_path / "stored")) - before), EngineCache(tmp_path / "engines").timing_cache_path(
            "a GPU"
        )

    first, timings = stored()
    assert first == 2, "a calibration and a verdict"
    assert stored() == (0, timings)
    monkeypatch.setattr(store_module, "ARITHMETIC_VERSION", -1)
    assert stored() == (first, timings)


def test_the_hash_of_the_source_is_known_in_a_zip_file(tmp_path):
    archive = Path(shutil.make_archive(str(tmp_path / "wheel"), "zip", PACKAGE.parent, PACKAGE.name))
    assert source_hash.hash_source(zipfile.Path(archive, "trt_tui/")) == source_hash.source_sha256()
