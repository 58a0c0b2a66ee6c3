import numpy as np
import pytest

from trt_tui.core.data.userscript import list_script_files
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.errors import InputError

OUTPUTS, LABELS = {"y": np.array([1.0, 3.0])}, {"t": np.array([1, 2])}


def metric(tmp_path, body):
    (tmp_path / "metric.py").write_text(f"import numpy as np\ndef f(outputs, labels):\n    {body}\n")
    return load_metric(f"{tmp_path / 'metric.py'}:f")


@pytest.mark.parametrize("body", ["return 0.5", "return np.float32(0.5)", "return np.array([0.5])"])
def test_number(tmp_path, body):
    result = metric(tmp_path, body)(OUTPUTS, LABELS)
    assert result == {"metric.py:f": 0.5} and type(result["metric.py:f"]) is float


def test_mapping_begins_with_the_headline(tmp_path):
    body = "return {'hits': (outputs['y'] == labels['t']).mean(), 'n': len(labels['t'])}"
    result = metric(tmp_path, body)(OUTPUTS, LABELS)
    assert [*result.items()] == [("hits", 0.5), ("n", 2.0)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return labels['none']", "KeyError: 'none' (line 3 of metric.py)"),
        ("exit(1)", "SystemExit"),
        ("return None", "returned NoneType"),
        ("return 'good'", "returned str 'good'"),
        ("return float('nan')", "returned nan"),
        ("return {'a': float('inf')}", "returned inf for 'a'"),
        ("return {}", "an empty mapping"),
        ("return {3: 1.0}", "the key int 3"),
        ("return outputs['y']", "an array of shape (2,)"),
        ("return 1j", "returned complex"),
        ("return [[1], [2, 3]]", "returned list"),
        ("return type('A', (), {'__array__': lambda *a: 1 / 0})()", "returned A"),
        ("return type('A', (), {'__repr__': lambda *a: 1 / 0})()", "returned A"),
        ("return type('M', (dict,), {'items': lambda *a: 1 / 0})(a=1)", "M that cannot be read"),
        ("raise type('E', (Exception,), {'__str__': lambda *a: 1 / 0})()", "E (line 3 of metric.py)"),
    ],
)
def test_nonsense_names_file_and_function(tmp_path, body, expected):
    with pytest.raises(InputError) as error:
        metric(tmp_path, body)(OUTPUTS, LABELS)
    assert expected in str(error.value) and "metric.py:f" in str(error.value)


def test_metrics_that_cannot_be_loaded(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nimport nonexistent_module_xyz\n")
    (tmp_path / "helper_of_metric.py").write_text("VALUE = 2.0\n")
    (tmp_path / "good.py").write_text("from helper_of_metric import VALUE\ndef f(o, l): return VALUE\n")
    for spec, expected in {
        "metric": "FILE.py:FUNCTION",
        f"{tmp_path}/good.py": "FILE.py:FUNCTION",
        f"{tmp_path}/absent.py:f": "not found",
        f"{tmp_path}/broken.py:f": "(line 2 of broken.py)",
        f"{tmp_path}/good.py:g": "has no function g",
    }.items():
        with pytest.raises(InputError) as error:
            load_metric(spec)
        assert expected in str(error.value)
    loaded = load_metric(f"{tmp_path}/good.py:f")
    assert loaded({}, {}) == {"good.py:f": 2.0} and loaded.name == "good.py:f"


def test_what_a_metric_imports_when_it_is_called_counts_from_then_on(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "deep.py").write_text("VALUE = 2.0\n")
    one = metric(tmp_path, "from parts.deep import VALUE; return VALUE")
    script, deep = tmp_path / "metric.py", tmp_path / "parts" / "deep.py"
    assert list_script_files(script) == (script,)
    assert one(OUTPUTS, LABELS) == {one.name: 2} and list_script_files(script) == (script, deep)
    deep.write_text("VALUE = 3.25\n")
    assert load_metric(f"{script}:f")(OUTPUTS, LABELS) == {one.name: 3.25}, "it is imported anew"
