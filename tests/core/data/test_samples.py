import base64
import io
import json
import textwrap
import time
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from trt_tui.core.data import tensor_files
from trt_tui.core.data.batches import ShapeRange, join_batches, parse_shapes
from trt_tui.core.data.samples import RANDOM_WARNING, load_samples, split_samples
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError

F32, I64 = np.dtype("float32"), np.dtype("int64")
STATIC = [TensorInfo("x", F32, (2, 3))]
DYNAMIC = [TensorInfo("x", F32, ("N", 3))]


def rows(count, width=3, dtype=np.float32):
    return np.arange(count * width, dtype=dtype).reshape(count, width)


def save(path, compress=False, **arrays):
    (np.savez_compressed if compress else np.savez)(path, **arrays)
    return path


def encode(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return {"array": base64.b64encode(buffer.getvalue()).decode(), "polygraphy_class": "ndarray"}


def script(path, body):
    path.write_text("import numpy as np\n" + textwrap.dedent(body))
    return path


def message(error):
    return str(error.value)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("in_memory", [1 << 20, 0])
def test_static_batch_is_cut(tmp_path, monkeypatch, compress, in_memory):
    monkeypatch.setattr(tensor_files, "MAX_IN_MEMORY_BYTES", in_memory)
    labels = np.arange(6) * 10
    fortran = np.asfortranarray(rows(6))
    samples = load_samples(save(tmp_path / "a.npz", compress, x=fortran, y=labels), STATIC)
    assert (len(samples), samples.count, samples.batch) == (3, 6, 2)
    assert samples.label_names == ("y",)
    feeds = list(samples.iterate_feeds())
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in feeds]), rows(6))
    assert all(feed["x"].flags.c_contiguous and type(feed["x"]) is np.ndarray for feed in feeds)
    np.testing.assert_array_equal(samples.read_labels(1)["y"], [20, 30])


def test_uncompressed_npz_is_memory_mapped(tmp_path):
    part = tensor_files.open_npz(save(tmp_path / "a.npz", x=rows(4)), "a.npz")
    assert isinstance(part.load_arrays()["x"], np.memmap)


def test_remainder_is_an_error_for_a_static_batch_only(tmp_path):
    path = save(tmp_path / "a.npz", x=rows(5))
    with pytest.raises(InputError, match="'x' has 5 samples"):
        load_samples(path, STATIC)
    samples = load_samples(path, DYNAMIC, batch=2)
    assert [feed["x"].shape[0] for feed in samples.iterate_feeds()] == [2, 2, 1]
    assert [samples.count_samples_of_feed(i) for i in range(3)] == [2, 2, 1]


def test_default_batch_leaves_four_feeds(tmp_path):
    assert load_samples(save(tmp_path / "a.npz", x=rows(64)), DYNAMIC).batch == 8
    few = load_samples(save(tmp_path / "b.npz", x=rows(8)), DYNAMIC)
    assert (few.batch, len(few)) == (2, 4)
    assert load_samples(tmp_path / "a.npz", DYNAMIC, shapes={"x": (16, 3)}).batch == 16


def test_batches_are_joined_unless_their_shapes_differ():
    assert join_batches("y", [np.ones((2, 3)), np.ones((1, 3))]).shape == (3, 3)
    assert join_batches("y", [np.int64(4), np.int64(5)]).tolist() == [4, 5]
    with pytest.raises(InputError, match="y"):
        join_batches("y", [np.ones((2, 3)), np.ones((2, 4))])


def test_limit(tmp_path):
    path = save(tmp_path / "a.npz", x=rows(12))
    assert load_samples(path, STATIC, limit=3).count == 4
    assert load_samples(path, DYNAMIC, limit=3, batch=2).count == 3


def test_other_arrays_are_cut_repeated_or_broadcast(tmp_path):
    inputs = [
        TensorInfo("anchors", F32, (4, 2)),
        TensorInfo("x", F32, (2, 3)),
        TensorInfo("pair", F32, (1, 3)),
        TensorInfo("scale", F32, ()),
    ]
    path = save(
        tmp_path / "a.npz", x=rows(4), anchors=rows(4, 2), pair=rows(2), scale=np.float32(7), names=np.arange(9)
    )
    samples = load_samples(path, inputs)
    second = samples.read_feed(1)
    assert len(samples) == 2
    np.testing.assert_array_equal(second["x"], rows(4)[2:])
    np.testing.assert_array_equal(second["anchors"], rows(4, 2))
    np.testing.assert_array_equal(second["pair"], rows(2)[1:])
    assert second["scale"] == 7
    assert samples.read_labels(1)["names"].shape == (9,)
    assert any("'names' has 9 rows for 4 samples" in text for text in samples.warnings)


def test_one_row_of_a_shared_dynamic_dimension_is_broadcast(tmp_path):
    inputs = [*DYNAMIC, TensorInfo("mask", F32, ("N", 1)), TensorInfo("free", F32, ("M", 1))]
    path = save(tmp_path / "a.npz", x=rows(5), mask=rows(1, 1), free=rows(3, 1))
    feeds = load_samples(path, inputs, batch=4).iterate_feeds()
    shapes = [{name: array.shape[0] for name, array in feed.items()} for feed in feeds]
    assert shapes == [{"x": 4, "mask": 4, "free": 3}, {"x": 1, "mask": 1, "free": 3}]
    with pytest.raises(InputError, match="disagree about the number of samples"):
        load_samples(save(tmp_path / "b.npz", x=rows(5), mask=rows(3, 1), free=rows(3, 1)), inputs)


def test_static_inputs_that_disagree(tmp_path):
    inputs = [TensorInfo("a", F32, (1, 3)), TensorInfo("b", F32, (1, 3))]
    with pytest.raises(InputError, match="'a' and 'b' disagree") as refused:
        load_samples(save(tmp_path / "a.npz", a=rows(6), b=rows(4)), inputs)
    assert refused.value.cause == "'a' has 6 rows (6 batches of 1), 'b' 4 rows (4 batches of 1)."


def test_folder_reads_files_in_order(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(InputError, match="data holds no .npz"):
        load_samples(folder, STATIC)
    save(folder / "2.npz", x=rows(4) + 100, y=np.arange(4))
    save(folder / "1.npz", compress=True, x=rows(2), y=np.arange(2))
    samples = load_samples(folder, STATIC)
    assert (len(samples), samples.count, samples.source) == (3, 6, "data")
    assert [feed["x"][0, 0] for feed in samples.iterate_feeds()] == [0, 100, 106]
    save(folder / "3.npz", x=rows(2))
    with pytest.raises(InputError, match="different labels"):
        load_samples(folder, STATIC)


@pytest.mark.parametrize("single", [False, True])
def test_polygraphy_json(tmp_path, single):
    feeds = [{"x": encode(rows(2) + i), "y": encode(np.array([i, i]))} for i in range(1 if single else 5)]
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps(feeds[0] if single else feeds, indent=4))
    samples = load_samples(path, STATIC)
    assert len(samples) == len(feeds)
    np.testing.assert_array_equal(samples.read_feed(len(feeds) - 1)["x"], rows(2) + len(feeds) - 1)
    assert samples.read_labels(0)["y"].tolist() == [0, 0]


def test_polygraphy_json_longer_than_a_block(tmp_path):
    inputs = [TensorInfo("x", F32, (1, 100_000))]
    arrays = [np.full((1, 100_000), i, np.float32) for i in range(6)]
    (tmp_path / "big.json").write_text(json.dumps([{"x": encode(array)} for array in arrays]))
    assert [feed["x"][0, -1] for feed in load_samples(tmp_path / "big.json", inputs).iterate_feeds()] == list(range(6))


def test_json_as_polygraphy_writes_it(tmp_path):
    polygraphy = pytest.importorskip("polygraphy.json")
    polygraphy.save_json([{"x": rows(2)}, {"x": rows(2) * 2}], str(tmp_path / "p.json"))
    np.testing.assert_array_equal(load_samples(tmp_path / "p.json", STATIC).read_feed(1)["x"], rows(2) * 2)


def test_plain_lists_in_json_have_the_type_of_their_numbers(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps([{"x": rows(2).tolist(), "y": [0, 1]}]))
    samples = load_samples(tmp_path / "p.json", STATIC)
    np.testing.assert_array_equal(samples.read_feed(0)["x"], rows(2))
    assert samples.read_labels(0)["y"].dtype == np.int64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"x": {"array": ', "not valid JSON"),
        ("not json", "not valid JSON"),
        ("[]", "gave no samples"),
        ("[3]", "is not a feed"),
        ('{"lst": [], "polygraphy_class": "RunResults"}', "RunResults, not feeds"),
        ('[{"x": ' + "9" * 5000 + "}]", None),
        ('[{"x": [1, [2]]}]', None),
        ("[" * 100_000, None),
        ('[{"x": "\\ud800"}]', None),
        ('[{"x": 1e999}]', None),
        ("[null]", None),
        ("[{}]", None),
        ("\ufeff[]", None),
        *(
            (f'[{{"x": {{"polygraphy_class": {kind}, "array": "{array}"}}}}]', None)
            for kind, array in (
                ('"ndarray"', "k05VTVBZAQA="),
                ('"ndarray"', "UEsDBA=="),
                ('"ndarray"', "\\u4e00"),
                ('["ndarray"]', None),
            )
        ),
    ],
)
def test_json_that_is_no_data(tmp_path, text, expected):
    (tmp_path / "inputs.json").write_text(text)
    with pytest.raises(InputError, match=expected):
        load_samples(tmp_path / "inputs.json", STATIC)


@pytest.mark.parametrize(
    ("labels", "samples", "refused"),
    [(31, 32, True), (33, 32, True), (30, 32, True), (10, 32, False), (64, 32, False), (6, 5, False)],
)
def test_labels_of_nearly_as_many_rows_as_samples_are_refused(tmp_path, labels, samples, refused):
    np.savez(tmp_path / "d.npz", x=rows(samples), label=np.arange(labels))
    if refused:
        with pytest.raises(InputError, match=f"'label' has {labels} rows for {samples} samples"):
            load_samples(tmp_path / "d.npz", DYNAMIC)
        return
    (warning,) = load_samples(tmp_path / "d.npz", DYNAMIC).warnings
    assert f"has {labels} rows for {samples} samples" in warning and "the metric gets all of it" in warning


def test_labels_that_nothing_reads_are_warned_of_alone(tmp_path):
    np.savez(tmp_path / "d.npz", x=rows(32), label=np.arange(31))
    (warning,) = load_samples(tmp_path / "d.npz", DYNAMIC, reads_labels=False).warnings
    assert warning == "Label 'label' has 31 rows for 32 samples; it is not used here."


def test_labels_are_checked_in_every_file_of_a_folder(tmp_path):
    for place, labels in enumerate((16, 15)):
        np.savez(tmp_path / f"{place}.npz", x=rows(16), label=np.arange(labels))
    with pytest.raises(InputError, match=r"1\.npz: label 'label' has 15 rows for 16 samples"):
        load_samples(tmp_path, DYNAMIC)


def test_script(tmp_path):
    path = script(
        tmp_path / "load.py",
        """
        import itertools
        def load_data():
            for i in itertools.count():
                yield {"x": np.full((2, 3), i, np.float64), "y": np.array([i, i])}
        def other():
            return [{"x": np.zeros((2, 3), np.float32)}]
        """,
    )
    samples = load_samples(path, STATIC, limit=10)
    assert (len(samples), samples.count) == (5, 10)
    assert samples.read_feed(4)["x"].dtype == np.float32 and samples.read_feed(4)["x"][0, 0] == 4
    assert len(load_samples(f"{path}:other", STATIC)) == 1


def test_endless_script_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "MAX_SCRIPT_FEEDS", 7)
    body = "def load_data():\n    while True: yield {'x': np.zeros((2, 3), np.float32)}"
    samples = load_samples(script(tmp_path / "load.py", body), STATIC)
    assert len(samples) == 7 and "over 7 feeds" in samples.warnings[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def load_data():\n    yield {'x': 1 / 0}", "ZeroDivisionError: division by zero (line 3 of load.py)"),
        ("def load_data(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3 (line 2 of load.py)"),
        ("def load(): pass", "no function load_data"),
        ("def load_data(): return 3", "load_data returned int"),
        ("def load_data(): return [7]", "is not a feed"),
        ("def load_data(): return []", "gave no samples"),
        ("def load_data(): return [{}]", "an empty dictionary"),
        ("def load_data(): return [{'x': object()}]", "'x' is not a numeric array but object"),
        ("def load_data(): return [{'x': [[1], [1, 2]]}]", "'x' is no"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\ndef load_data(): raise E()",
            "E (line 4 of load.py)",
        ),
        (
            "class E(BaseException): pass\ndef load_data():\n    yield {'x': np.ones((2, 3), 'f4')}\n    raise E('end')",
            "E: end (line 5 of load.py)",
        ),
        (
            "class A:\n    def __array__(self, *a, **k): raise E\nclass E(Exception):\n    def __str__(self): return 3\n"
            "def load_data(): return [{'x': A()}]",
            "'x' is not an array",
        ),
        (
            "from collections.abc import Mapping\nclass M(Mapping):\n    def __iter__(self): raise OSError('gone')\n"
            "    def __len__(self): return 1\n    def __getitem__(self, key): pass\ndef load_data(): return M()",
            "gone",
        ),
        ("x = '\\x00", "SyntaxError"),
        ("def load_data(): return load_data()", "RecursionError"),
    ],
)
def test_bad_script(tmp_path, body, expected):
    with pytest.raises(InputError) as error:
        load_samples(script(tmp_path / "load.py", body), STATIC)
    assert expected in message(error) and "load.py" in message(error)


def test_script_does_not_write_to_stdout(tmp_path, capsys):
    body = "print('a')\ndef load_data():\n    print('b')\n    yield {'x': np.zeros((2, 3), np.float32)}"
    load_samples(script(tmp_path / "load.py", body), STATIC)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (rows(2, 4), "size 4 in dimension 1, the network takes 3"),
        (rows(2)[None], "has 3 dimensions, the network takes 2"),
        (rows(1)[0], "add it with array"),
        (rows(2, dtype=np.complex64), "is complex64, the network takes float32"),
        (rows(2, dtype=np.int64), "is int64, the network takes float32"),
        (rows(0), "has no samples"),
        (np.array([["a"] * 3] * 2, object), "pickled"),
        (np.array([["a"] * 3] * 2), "is <U1, the network takes float32"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, array, expected):
    with pytest.raises(InputError) as error:
        load_samples(save(tmp_path / "a.npz", x=array), STATIC)
    assert expected in message(error) and "'x'" in message(error)


@pytest.mark.parametrize(
    ("given", "wanted", "values"),
    [
        ("float64", "float32", [1, 2]),
        ("float32", "float16", [1, 2]),
        ("uint8", "float32", [1, 255]),
        ("int32", "int64", [1, -2]),
        ("int64", "int32", [1, -2]),
        ("bool", "float32", [0, 1]),
    ],
)
def test_casts(tmp_path, given, wanted, values):
    path = save(tmp_path / "a.npz", x=np.array(values, given))
    samples = load_samples(path, [TensorInfo("x", np.dtype(wanted), (2,))])
    assert samples.read_feed(0)["x"].dtype == wanted
    np.testing.assert_array_equal(samples.read_feed(0)["x"], values)


def test_values_that_a_type_cannot_hold(tmp_path):
    with pytest.raises(InputError, match="holds 4294967296 at sample 1"):
        load_samples(save(tmp_path / "a.npz", x=np.array([1, 2**32])), [TensorInfo("x", np.dtype("int32"), (2,))])
    with pytest.raises(InputError, match="float16 cannot hold it"):
        load_samples(save(tmp_path / "b.npz", x=np.array([1, 1e6])), [TensorInfo("x", np.dtype("float16"), (2,))])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_name_array_and_sample(tmp_path, bad):
    array = rows(6)
    array[5, 1] = bad
    samples = load_samples(save(tmp_path / "a.npz", x=array), STATIC)
    samples.read_feed(1)
    with pytest.raises(InputError, match=f"a.npz: input 'x' holds {bad} at sample 5"):
        samples.read_feed(2)


def test_missing_input_lists_what_there_is(tmp_path):
    with pytest.raises(InputError) as error:
        load_samples(save(tmp_path / "a.npz", x_1=rows(2), y=rows(2)), [TensorInfo("x_0", F32, (2, 3))])
    assert "'x_0' is missing" in message(error) and "It has: x_1, y." in message(error)
    assert "Rename 'x_1' to 'x_0'" in message(error)


def damaged(content):
    return content[: len(content) // 3] + bytes(len(content) // 6) + content[len(content) // 2 :]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.npz", lambda good: b"", "is empty"),
        ("text.npz", lambda good: b"hello", "cannot be read"),
        ("cut.npz", lambda good: good[: len(good) // 2], "cannot be read"),
        ("damaged.npz", damaged, "cannot be read"),
        ("one.npy", lambda good: base64.b64decode(encode(rows(2))["array"]), "numpy.savez"),
        ("absent.npz", None, "not found"),
        ("absent.py", None, "not found"),
    ],
)
def test_files_that_are_no_data(tmp_path, name, content, expected):
    if content is not None:
        good = save(tmp_path / "good.npz", compress=True, x=rows(200)).read_bytes()
        (tmp_path / name).write_bytes(content(good))
    with pytest.raises(InputError) as error:
        load_samples(tmp_path / name, STATIC)
    assert expected in message(error) and name in message(error)


def test_random_inputs_are_seeded_and_warned_of():
    inputs = [
        TensorInfo("input_ids", I64, ("B", "S")),
        TensorInfo("attention_mask", I64, ("B", "S")),
        TensorInfo("token_type_ids", I64, ("B", "S")),
        TensorInfo("position_ids", I64, (1, "S")),
        TensorInfo("image", F32, ("B", 3)),
    ]
    samples = load_samples(None, inputs, shapes={"input_ids": (4, 16)}, seed=5)
    assert samples.is_random and samples.warnings == (RANDOM_WARNING,)
    assert (samples.batch, samples.count) == (4, 32)
    feed = samples.read_feed(3)
    assert feed["attention_mask"].shape == (4, 16) and feed["attention_mask"].all()
    assert feed["input_ids"].max() > 7 and feed["token_type_ids"].max() == 1
    assert feed["position_ids"].tolist() == [list(range(16))]
    assert abs(feed["image"].mean()) < 1 and feed["image"].std() > 0.5
    again = load_samples(None, inputs, shapes={"input_ids": (4, 16)}, seed=5)
    assert again.hash_inputs() == samples.hash_inputs()
    assert load_samples(None, inputs, shapes={"input_ids": (4, 16)}, seed=6).hash_inputs() != samples.hash_inputs()
    assert load_samples(None, DYNAMIC, limit=5, batch=2).count == 5
    assert len(load_samples(None, [TensorInfo("x", F32, (32, 2))])) == 4


def test_random_inputs_need_all_sizes():
    for shape in [("N", "C"), None, ("N", None)]:
        with pytest.raises(InputError, match="--shapes x:"):
            load_samples(None, [TensorInfo("x", F32, shape)])


def test_sha256_is_that_of_the_rows(tmp_path):
    path = save(tmp_path / "a.npz", x=rows(12))
    one, other = load_samples(path, DYNAMIC, batch=4), load_samples(path, DYNAMIC, batch=5)
    assert one.hash_inputs() == other.hash_inputs() == load_samples(path, STATIC).hash_inputs()
    assert one.select_feeds([0]).hash_inputs() != one.hash_inputs()
    assert load_samples(save(tmp_path / "b.npz", x=rows(12) + 1), DYNAMIC).hash_inputs() != one.hash_inputs()


def test_split(tmp_path):
    samples = load_samples(save(tmp_path / "a.npz", x=rows(20)), STATIC)
    sets = split_samples(samples)
    assert [len(sets.calibration_samples), len(sets.other_samples)] == [3, 7] and sets.warnings == ()
    assert [feed["x"][0, 0] for feed in sets.calibration_samples.iterate_feeds()] == [0, 24, 48]
    assert sets.other_samples.read_feed(3)["x"][0, 0] == 30
    assert sets.judged_samples is samples and sets.calibrating_feeds == {0, 4, 8}

    single = split_samples(samples.select_feeds([2]))
    assert single.calibration_samples is single.judged_samples and "One feed both" in single.calibration_warning
    assert not single.calibrating_feeds and single.other_samples is single.judged_samples

    same = split_samples(samples, load_samples(tmp_path / "a.npz", DYNAMIC))
    assert "same samples" in same.calibration_warning and not same.calibrating_feeds
    other = split_samples(samples, load_samples(save(tmp_path / "b.npz", x=rows(20) + 1), STATIC))
    assert not other.warnings and not other.calibration_warning and other.judged_samples is samples


def test_parse_shapes():
    inputs = [TensorInfo("a:0", F32, ("N", 3)), TensorInfo("b", I64, ("S",))]
    parsed = parse_shapes(["a:0:1x3:4x3:8x3", "b:7"], inputs)
    assert parsed == {"a:0": ShapeRange((1, 3), (4, 3), (8, 3)), "b": ShapeRange((7,), (7,), (7,))}
    assert parse_shapes(["a:0:2x3"], inputs)["a:0"].opt == (2, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", "Not a shape: x"),
        ("x:1xa", "Not a shape"),
        ("y:1x3", "no input 'y'"),
        ("y:1x3:1x3:1x3", "no input 'y'"),
        ("x:1x4", "does not fit input 'x'"),
        ("x:3", "does not fit input 'x'"),
        ("x:4x3:2x3:8x3", "out of order in dimension 0: 4, 2, 8"),
        ("x:1x3 x:2x3", "given twice"),
        *((f"x:{size}x3", "does not fit input 'x'") for size in ("9" * 5000, "99999999999999", "2147483648", "0")),
    ],
)
def test_bad_shapes(text, expected):
    with pytest.raises(InputError, match=expected):
        parse_shapes(text.split(), DYNAMIC)


@pytest.mark.parametrize("kind", ["compressed", "stored", "script", "json"])
def test_memory_does_not_grow_with_the_samples(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tensor_files, "MAX_IN_MEMORY_BYTES", 1 << 20)
    inputs = [TensorInfo("x", F32, (1, 100_000))]
    data = np.random.default_rng(0).standard_normal((40, 100_000)).astype(np.float32)  # 16 MB
    path = save(tmp_path / "a.npz", kind == "compressed", x=data)
    if kind == "script":
        body = "def load_data():\n    for i in range(40): yield {'x': np.full((1, 100_000), i, np.float32)}"
        path = script(tmp_path / "load.py", body)
    elif kind == "json":
        path = tmp_path / "a.json"
        path.write_text(json.dumps([{"x": encode(row[None])} for row in data]))
    del data
    tracemalloc.start()
    try:
        samples = load_samples(path, inputs)
        assert samples.count == 40 and len(samples.hash_inputs()) == 64
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_bfloat16_inputs(tmp_path):
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    path = save(tmp_path / "a.npz", x=np.array([1.5, -2], np.float32))
    samples = load_samples(path, [TensorInfo("x", bfloat16, (2,))])
    assert samples.read_feed(0)["x"].dtype == bfloat16 and samples.read_feed(0)["x"].tolist() == [1.5, -2]
    assert load_samples(None, [TensorInfo("x", bfloat16, (2,))]).read_feed(0)["x"].dtype == bfloat16


def test_shapes_of_other_inputs_follow_from_dimensions_of_the_same_name():
    tokens = TensorInfo("tokens", np.dtype(np.int64), ("batch", "sequence"))
    mask = TensorInfo("mask", np.dtype(np.int64), ("batch", 1, "sequence"))
    other = TensorInfo("other", np.dtype(np.float32), ("batch", "width"))
    shapes = parse_shapes(["tokens:1x4:2x7:4x16"], [tokens, mask, other])
    assert shapes["mask"] == ShapeRange((1, 1, 4), (2, 1, 7), (4, 1, 16)) and "other" not in shapes
    given = parse_shapes(["tokens:1x4:2x7:4x16", "mask:1x1x4:2x1x8:4x1x16"], [tokens, mask])
    assert given["mask"].opt == (2, 1, 8)


def test_random_samples_have_a_bound_and_feeds_fit_in_memory():
    open_batch = [TensorInfo("x", np.dtype("float32"), ("N", 3, 224, 224))]
    with pytest.raises(InputError, match="1,000,000,000 random samples are too many") as error:
        load_samples(None, open_batch, limit=1_000_000_000)
    assert "--data" in error.value.next_step
    since = time.monotonic()
    with pytest.raises(InputError, match="do not fit in memory") as error:  # numpy would begin to fill them
        load_samples(None, open_batch, batch=1 << 20)
    assert "--batch" in error.value.next_step and time.monotonic() - since < 1
    narrow = [TensorInfo("x", np.dtype("float32"), ("N", 3))]
    assert load_samples(None, narrow, limit=1 << 16, batch=1024).count == 1 << 16
