"""Error metrics, and the metric of the user."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests import local
from tests.measuring import errors_between
from tests.texts import lacking
from trt_tui.core.data.userscript import list_script_files
from trt_tui.core.lowering.gated.error_sums import ERROR_SUM_COLUMNS, SAMPLE_SUM_COLUMNS
from trt_tui.core.measure import error_metrics
from trt_tui.core.measure.error_metrics import (
    ErrorMetrics,
    ErrorSums,
    compute_error_sums_by_name,
    compute_sqnr_db_by_sample,
)
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.core.report import run_columns
from trt_tui.errors import InputError
from trt_tui.formatting import number_text
from trt_tui.session.comparison_report import comparison_markdown, comparison_record, comparison_text
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.summary import summary_lines

FLOATS = st.floats(-1e6, 1e6, width=32)


def pair(seed=0, shape=(6, 5, 4), noise=1e-2):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(shape).astype(np.float32)
    return reference, reference + np.float32(noise) * rng.standard_normal(shape).astype(np.float32)


def test_the_metrics_are_those_of_their_definitions():
    reference, test = (array.astype(np.float64) for array in pair())
    found = errors_between(*pair())
    difference = test - reference
    assert found.sqnr_db == pytest.approx(10 * np.log10((reference**2).sum() / (difference**2).sum()))
    cosine = (reference * test).sum() / np.linalg.norm(reference) / np.linalg.norm(test)
    assert found.cosine == pytest.approx(cosine, abs=1e-12)
    assert found.mse == pytest.approx((difference**2).mean())
    assert found.max_abs == np.abs(difference).max() and found.mean_abs == pytest.approx(np.abs(difference).mean())
    assert (found.nan, found.inf, found.exact, found.mismatch) == (0, 0, False, None)


def test_an_exact_copy_has_no_sqnr_and_a_cosine_of_one():
    reference, _ = pair()
    assert errors_between(reference, reference) == ErrorMetrics(None, 1.0, 0.0, 0.0, 0.0, exact=True)


def test_nan_and_inf_are_counted_where_only_the_test_has_them():
    reference, test = pair()
    test[0, 0, :2] = np.nan
    test[1, 0, 0] = np.inf
    reference[2, 0, 0] = test[2, 0, 0] = np.inf
    found = errors_between(reference, test)
    assert (found.nan, found.inf) == (2, 1)
    assert found.sqnr_db is found.cosine is found.mse is found.max_abs is None and not found.exact


def test_a_reference_of_zeros_has_no_sqnr():
    found = errors_between(np.zeros(4), np.ones(4))
    assert found.sqnr_db is None and found.cosine is None and not found.exact and found.mse == 1


PIECES = st.lists(arrays.arrays(np.float32, st.integers(1, 6), elements=FLOATS), min_size=1, max_size=5)


@settings(deadline=None)
@given(PIECES, st.integers(0, 99))
def test_pooling_over_uneven_pieces_is_the_metric_of_all_together(pieces, seed):
    rng = np.random.default_rng(seed)
    tests = [piece + rng.standard_normal(piece.shape).astype(np.float32) for piece in pieces]
    pooled, merged = ErrorSums(), ErrorSums()
    for reference, test in zip(pieces, tests, strict=True):
        pooled.add_tensor_pair(reference, test)
        part = ErrorSums()
        part.add_tensor_pair(reference, test)
        merged.merge_sums(part)
    whole = ErrorSums()
    whole.add_tensor_pair(np.concatenate(pieces), np.concatenate(tests))
    for sums in (pooled, merged):
        assert sums == pytest.approx(whole, rel=1e-9)


def test_a_float32_sum_would_lose_what_float64_keeps():
    reference = np.full(1 << 16, 4096.0, np.float32)
    test = reference.copy()
    test[0] += np.float32(1)
    assert errors_between(reference, test).mse == pytest.approx(1 / (1 << 16), rel=1e-9)


def test_each_sample_has_its_own_sqnr():
    reference, test = pair(shape=(4, 30))
    test[1] = reference[1]
    test[2, 3] = np.nan
    found = compute_sqnr_db_by_sample(compute_error_sums_by_name(reference, test, len(reference)))
    assert found[1] == np.inf and found[2] == -np.inf
    for index in (0, 3):
        assert found[index] == pytest.approx(errors_between(reference[index], test[index]).sqnr_db)


def test_the_infinities_of_a_mask_hide_no_error():
    """A reference that is -inf where something is masked has finite figures at the rest of it."""
    reference, test = pair(shape=(3, 40))
    masked, found = (np.where(np.arange(40) < 4, -np.inf, array) for array in (reference, test))
    rest = errors_between(reference[:, 4:], test[:, 4:])
    assert errors_between(masked, found).sqnr_db == pytest.approx(rest.sqnr_db)
    assert errors_between(masked, found).cosine == pytest.approx(rest.cosine)
    assert compute_sqnr_db_by_sample(compute_error_sums_by_name(masked, found, len(masked))) == pytest.approx(
        compute_sqnr_db_by_sample(compute_error_sums_by_name(reference[:, 4:], test[:, 4:], len(reference)))
    )
    sums = ErrorSums()
    sums.add_tensor_pair(masked, found)
    assert 0 < sums.noise_to_signal_ratio < 1 and errors_between(masked, reference).inf == 0
    assert errors_between(reference, masked).inf == 12


def test_a_sample_without_signal_has_no_sqnr_unless_it_is_exact_or_broken():
    reference = np.zeros((4, 3))
    test = np.array([[0, 0, 0], [1, 0, 0], [np.nan, 0, 0], [0, np.inf, 0]])
    found = compute_sqnr_db_by_sample(compute_error_sums_by_name(reference, test, len(reference)))
    assert found[0] == np.inf and np.isnan(found[1]) and list(found[2:]) == [-np.inf, -np.inf]


def test_a_metric_of_the_table_is_a_column_a_target_and_a_value_of_records(tmp_path, monkeypatch):
    """Relative L2 error, of which nothing but its entry in the table knows."""
    metric = error_metrics.ErrorMetric(
        name="rel_l2",
        key="rel_l2",
        title="relative L2",
        is_higher_better=False,
        sums=("diff2", "ref2"),
        formula=lambda diff2, ref2: np.sqrt(diff2 / ref2),
        tables=("runs", "config list", "outputs"),
    )
    monkeypatch.setitem(error_metrics.ERROR_METRICS, metric.name, metric)
    monkeypatch.setattr(local.NullSession, "measured_before", tmp_path / "measured", raising=False)
    session = local.measured(tmp_path, target="rel_l2<=1e-6", metric=False)
    int8 = comparison_record(session)["runs"]["int8"]
    value, low_and_high = int8["outputs"]["logits"]["rel_l2"], int8["intervals"]["worst"]["rel_l2"]
    assert value == pytest.approx(10 ** (-int8["outputs"]["logits"]["sqnr_db"] / 20))
    assert low_and_high[0] < value < low_and_high[1] and int8["result"]["outcome"] == "FAIL"
    lines = comparison_text(session).splitlines()
    assert any(not lacking(line, "target: ", "L2 ≤ 1e-06") for line in lines)
    titles, row = (next(line for line in lines if line.startswith(start)) for start in ("run ", "INT8 "))
    assert "relative L2" in titles and number_text(value) in row.split()
    report = comparison_markdown(session)
    assert not lacking(report, " relative L2 ", f" ~{number_text(value)} ")
    header, (shown, *_) = config_table(session, 100)
    assert "~relative L2" in [text.strip() for text, _ in header]
    assert number_text(value) in [text.strip() for text, _ in shown[1]]


def test_a_column_of_runs_is_in_each_table_that_it_names(tmp_path, monkeypatch, measured_before):
    """The number of samples, of which nothing but its entry in the table knows."""
    column = run_columns.RunColumn(
        "on samples",
        "accuracy.samples",
        lambda count, mark: f"{mark}{count}",
        ("runs", "simulated", "config list"),
        key="sample_count",
        width=10,
    )
    monkeypatch.setattr(run_columns, "RUN_COLUMNS", (*run_columns.RUN_COLUMNS, column))
    session = local.measured(tmp_path)
    record, samples = comparison_record(session), session.get_run_results("int8").accuracy.samples
    assert record["runs"]["int8"]["sample_count"] == samples
    titles, row = (
        next(line for line in comparison_text(session).splitlines() if line.startswith(start))
        for start in ("run ", "INT8 ")
    )
    assert "on samples" in titles and f"~{samples}" in row.split()
    verdict = comparison_markdown(session).partition("## Judged")[0]
    assert not lacking(verdict, " on samples ", f" ~{samples} ")
    header, (shown, *_) = config_table(session, 100)
    assert "~on samples" in [text.strip() for text, _ in header]
    assert str(samples) in [text.strip() for text, _ in shown[1]]
    for width in (90, 120):
        title_line, *lines = summary_lines(session, width)
        assert "on samples" in [text.strip() for text, _ in title_line]
        line = next(line for line in lines if line[0][0].startswith(" c0"))
        assert str(samples) in [text.strip() for text, _ in line]


def test_metrics_are_computed_from_sums_that_numpy_and_graphs_take():
    reference, test = pair(shape=(4, 30))
    sums = error_metrics.compute_error_sums_by_name(reference, test, 4)
    table = np.stack([sums.get(name, np.zeros(4)) for name in ERROR_SUM_COLUMNS], axis=1)
    merged = ErrorSums()
    merged.merge_table(table)
    assert merged.compute_metrics_of_each_tensor() == [*map(errors_between, reference, test)]
    assert {"ref2", "ref_max", "count", *SAMPLE_SUM_COLUMNS} >= {*error_metrics.SAMPLE_SUMS}
    for metric in error_metrics.ERROR_METRICS.values():
        assert set(metric.sums) <= set(ERROR_SUM_COLUMNS) or metric.sums == error_metrics.MISMATCH_SUMS


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
