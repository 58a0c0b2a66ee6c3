"""Damaged networks open or are refused by a clear error; `tests.fuzz.files` does it by the thousand."""

import hashlib

import pytest

from tests.fuzz.files import compared, inspected, outcome
from tests.fuzz.mutations import SEEDS, damaged, whole

OPENED = range(400)
COMPARED = range(4000, 4012)


@pytest.mark.parametrize("start", range(0, len(OPENED), 50))
def test_a_damaged_file_opens_or_is_refused(start, tmp_path):
    ends = {case: outcome(case, tmp_path) for case in OPENED[start : start + 50]}
    found = {case: text for case, (kind, text) in ends.items() if kind not in ("opened", "refused")}
    assert not found, "\n".join(f"case {case}: {text}" for case, text in found.items())
    assert {kind for kind, _ in ends.values()} == {"opened", "refused"}  # it is neither too weak nor too strong


def test_a_conv_of_more_groups_than_channels_takes_no_memory(tmp_path):
    assert outcome(63739, tmp_path)[0] == "opened"


@pytest.mark.parametrize("case", COMPARED)
def test_a_damaged_file_compares_or_is_refused(case, tmp_path):
    kind, text = outcome(case, tmp_path, compare=True)
    assert kind in ("compared", "refused"), text


def test_a_whole_file_is_not_refused(tmp_path):
    for seed in SEEDS:
        path = tmp_path / f"{seed}.onnx"
        path.write_bytes(whole(seed))
        assert inspected(path) == "opened"
    assert compared(tmp_path / "mlp.onnx") == "compared"


def test_a_case_is_the_same_each_time():
    assert [damaged(7) for _ in range(2)] == [damaged(7)] * 2
    assert len({hashlib.sha256(damaged(case)[1]).digest() for case in range(50)}) > 45


def test_a_defect_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("trt_tui.core.network.network.open_network", lambda path: 1 / 0)
    kind, text = outcome(0, tmp_path)
    assert kind == "FOUND" and "ZeroDivisionError" in text
