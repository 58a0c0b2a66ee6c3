"""trt_tui.session.loss_causes: what the session knows of the cause of a loss"""

from types import SimpleNamespace

import pytest

from trt_tui.core.calibration.calibration import TensorStats
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.session.loss_causes import _find_tensor_range

STATS = TensorStats(9.0, 0.5, 1.0, 1.5, 1000, (0,) * 64, {}, None)


@pytest.mark.parametrize(
    ("precision", "method", "expected"),
    [
        (Precision.FILE, "", (3.0, "the file's")),
        (Precision.INT8, "", (9.0, "")),
        (Precision.INT8, "user", (5.0, "own")),
        (Precision.INT8, "mse", (5.0, "mse")),
    ],
)
def test_the_file_decides_a_range_then_the_config_then_the_data(precision, method, expected):
    config = PrecisionConfig.from_precision(precision)
    if method:
        config = config.with_range("x", RangeMove(5.0, method))
    session = SimpleNamespace(
        outline=SimpleNamespace(quantized_ranges={"x": 3.0}, tensors_with_shared_range={}), calibration=None
    )
    assert _find_tensor_range(session, config, "x", STATS, QUANTIZED_TYPES[Precision.INT8]) == expected


@pytest.mark.parametrize(("moved", "expected"), [(None, (7.0, "minmax")), ("x", (5.0, "mse")), ("y", (5.0, "mse"))])
def test_tensors_that_a_concat_joins_have_one_range(moved, expected):
    config = PrecisionConfig.from_precision(Precision.INT8)
    if moved:
        config = config.with_range(moved, RangeMove(5.0, "mse"))
    session = SimpleNamespace(
        outline=SimpleNamespace(quantized_ranges={}, tensors_with_shared_range=dict.fromkeys("xy", ("x", "y"))),
        calibration=SimpleNamespace(range_table={"x": 4.0, "y": 7.0}, method="minmax"),
    )
    assert _find_tensor_range(session, config, "x", STATS, QUANTIZED_TYPES[Precision.INT8]) == expected
