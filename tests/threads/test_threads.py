"""The threads of `README.md`: each command prints the cause and the workaround that the table states."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.networks import qdq
from tests.threads import networks as threads
from trt_tui.core.network.known_defects import KNOWN_DEFECTS

pytestmark = pytest.mark.shares_cache

PAGE = Path(__file__).with_name("README.md")
VERDICTS = ("solved", "in part", "not")

LOSS = "compare {net} {data} {reference} --no-preview"
LOSS_IN_FP16 = f"{LOSS} --runs fp16"
SEARCH = "search {net} {data} {reference} --no-hold-out --max-builds 0 -o {out}"
SEARCH_IN_FP16 = f"{SEARCH} --precision fp16 --tolerance sqnr>=45"
LINT = "lint {net}"
EXPORT_IN_FP16 = "build {net} --precision fp16 -o {typed}"

Step = tuple[str, Sequence[str]]


@dataclass(frozen=True)
class Trouble:
    """A network with a trouble, and commands with the texts that each has to print.

    Attributes:
        build: Returns the network, its samples, and perhaps the network in FP32 that it was made from.
        steps: The commands in their order, with the texts.
        calibration_factor: The calibration samples are the samples times this factor; None for no others.
    """

    build: Callable[[], Any]
    steps: Sequence[Step]
    calibration_factor: float | None = None


def lost_in_fp16(build: Callable[[], Any], cause: str, next_step: str, way_round: str) -> Trouble:
    """The cause that `compare` prints, its next step, and what `search` changes to keep 45 dB."""
    return Trouble(
        build,
        [(LOSS_IN_FP16, (cause, f"  next step: {next_step}")), (SEARCH_IN_FP16, (way_round, "  simulated: PASS\n"))],
    )


def checked(build: Callable[[], onnx.ModelProto], *texts: str) -> Trouble:
    """What the check of the Q/DQ nodes prints."""
    return Trouble(lambda: (build(), {}), [(LINT, texts)])


RANGE_STEP = "run the layer in BF16, which has the range of FP32, or in FP32"
COORDINATE_STEP = "run the layer in FP32"

TROUBLES = {
    "layer norm": lost_in_fp16(
        threads.layer_norm_of_large_activations,
        "norm/mean: values exceed FP16's range: Pow /norm/Pow reaches ",
        "write it as LayerNormalization, whose mean and variance TensorRT computes in FP32, or ",
        "sqnr>=45: LayerNorm operator meets the tolerance: ",
    ),
    "layer norm, FP16 file": Trouble(
        lambda: threads.halved(threads.layer_norm_of_large_activations()),
        [
            (
                LOSS,
                (
                    "norm/mean: values exceed FP16's range: Pow /norm/Pow reaches ",
                    "  next step: write it as LayerNormalization, whose mean and variance TensorRT computes in FP32, or ",
                ),
            ),
            (
                f"{SEARCH} --tolerance sqnr>=45",
                ("LayerNorm operator, no longer in file precision meets the tolerance: ", "  simulated: PASS\n"),
            ),
        ],
    ),
    "variance of squares": lost_in_fp16(
        threads.variance_of_squares,
        "mean: values of Sub /variance/Sub are small beside the offset that it subtracts: FP16's step at ",
        "subtract the offset in FP32 before the layer, or run the layer and the one that computes its input in FP32",
        "mean   LayerNorm  FP32",
    ),
    "channels-first layer norm": lost_in_fp16(
        threads.channels_first_layer_norm,
        "norm/mean: values exceed FP16's range: Pow /norm/Pow reaches ",
        f"{RANGE_STEP}; it cannot be written as LayerNormalization: it normalises over an axis that is not the last: "
        "the operator would need Transposes around it",
        "norm/mean  LayerNorm  FP32  ",
    ),
    "RMS norm": lost_in_fp16(
        threads.rms_norm_of_large_activations,
        "norm: values exceed FP16's range: Pow /norm/Pow reaches ",
        "write it as RMSNormalization, whose mean and variance TensorRT computes in FP32, or ",
        "sqnr>=45: RMSNorm operator meets the tolerance: ",
    ),
    "L2 normalisation": lost_in_fp16(
        threads.l2_normalisation_of_large_activations,
        "l2/square: values exceed FP16's range: Mul /l2/square/Mul reaches ",
        RANGE_STEP,
        "l2/square  L2Norm    FP32",
    ),
    "normalise with a clip": Trouble(
        threads.normalisation_with_a_clip,
        [
            (EXPORT_IN_FP16, ("is 0 in FP16 and is raised to 6e-08: it protects a divisor from 0.",)),
            (LOSS_IN_FP16, ("PASS",)),
        ],
    ),
    "normalise with a clip, FP16 file": Trouble(
        lambda: threads.halved(threads.normalisation_with_a_clip()),
        [
            (
                LOSS,
                (
                    "of Clip /normalize/Clip is 0 in the file: FP16's smallest value is 6e-8, and 33% of the results of "
                    "Clip /normalize/Clip are smaller; ",
                    "  next step: write an epsilon of 6.1e-5 or more, or run the layer in FP32",
                ),
            ),
            (f"{SEARCH} --tolerance sqnr>=45", ("  simulated: PASS\n",)),
        ],
    ),
    "division by a sum": Trouble(
        threads.division_by_a_sum_with_an_epsilon,
        [(EXPORT_IN_FP16, ("is 0 in FP16 and is raised to 6e-08: it protects a divisor from 0.",))],
    ),
    "division by a sum, FP16 file": Trouble(
        lambda: threads.halved(threads.division_by_a_sum_with_an_epsilon()),
        [
            (
                LOSS,
                (
                    "of Add /total/Add is 0 in the file: FP16's smallest value is 6e-8, and ",
                    " of the results of Add /total/Add are smaller; ",
                ),
            )
        ],
    ),
    "layer norm of tiny values": lost_in_fp16(
        threads.layer_norm_of_tiny_values,
        "the epsilon of the decomposed LayerNormalization is 0 in FP16: it is 1e-08, ",
        "write it as LayerNormalization, whose mean and variance TensorRT computes in FP32, or ",
        "LayerNorm operator meets the tolerance: ",
    ),
    "instance norm": lost_in_fp16(
        threads.instance_norm,
        "norm: values of InstanceNormalization /norm/InstanceNormalization are small beside the offset that it "
        "subtracts: FP16's step at ",
        "subtract the offset in FP32 before the layer, or run the layer and the one that computes its input in FP32",
        "norm   InstanceNormalization  FP32",
    ),
    "multiplied mask": Trouble(
        lambda: threads.attention(-1e10, multiplied=True),
        [(EXPORT_IN_FP16, ("exceeds FP16 and is clamped to ±32752.",)), (LOSS_IN_FP16, ("PASS",))],
    ),
    "multiplied mask, FP16 file": Trouble(
        lambda: threads.halved(threads.attention(-1e10, multiplied=True)),
        [
            (
                LOSS,
                (
                    " is beyond FP16's range: its value is infinite, beyond FP16's 65504; ",
                    "  next step: export it again from FP32 with a mask value such as -32752, or run the layer in FP32",
                ),
            )
        ],
    ),
    "added mask": Trouble(
        lambda: threads.attention(-1e8),
        [(EXPORT_IN_FP16, ("exceeds FP16 and is clamped to ±32752.",)), (LOSS_IN_FP16, ("PASS",))],
    ),
    "rows of padding": Trouble(
        lambda: threads.attention(-65504.0, bias=-40.0, fully_masked=True),
        [(LOSS_IN_FP16, ()), (SEARCH_IN_FP16, ("  simulated: PASS\n",))],
    ),
    "scale behind QK": lost_in_fp16(
        threads.product_of_q_and_k,
        "attention core/QK: the attention is scaled behind the product of Q and K, by Mul /scale/Mul: MatMul "
        "/scores/MatMul reaches ",
        "scale Q or K before the product, as TensorRT requires for its fused attention, or run the layer in FP32",
        "attention core/QK  MatMul    in the weights of Q",
    ),
    "product of Q and K": lost_in_fp16(
        lambda: threads.product_of_q_and_k(is_scaled_first=True),
        "attention core/QK: values exceed FP16's range: MatMul /scores/MatMul reaches ",
        RANGE_STEP,
        "attention core/QK       MatMul    FP32",
    ),
    "infinite bound": lost_in_fp16(
        threads.layer_norm_with_infinite_bounds,
        "norm/mean: values exceed FP16's range: Mul /norm/Mul reaches ",
        RANGE_STEP,
        "norm/mean  LayerNorm  FP32",
    ),
    "feed-forward block": lost_in_fp16(
        threads.feed_forward_beyond_fp16,
        "wo: values exceed FP16's range: MatMul /wo/MatMul reaches ",
        RANGE_STEP,
        "wo     MatMul    FP32",
    ),
    "residual sum": lost_in_fp16(
        threads.residual_beyond_fp16,
        "second: values exceed FP16's range: Add /residual/Add reaches ",
        RANGE_STEP,
        "second  MatMul              FP32",
    ),
    "pixels of 16 bits": lost_in_fp16(
        threads.image_of_16_bits,
        "scale: values exceed FP16's range: MatMul /scale/MatMul reaches 65535, beyond FP16's 65504; ",
        RANGE_STEP,
        "scale      MatMul    FP32",
    ),
    "clamped factor": lost_in_fp16(
        threads.quotient_beyond_fp16,
        "of Mul /key/Mul is clamped for FP16: it reaches 1e5, beyond FP16's 65504, and is clamped to 32752 as a mask; ",
        f"write it as two factors within FP16's range, or {RANGE_STEP}",
        "key/Mul  Mul       FP32",
    ),
    "softplus": lost_in_fp16(
        threads.decomposed_softplus,
        "dense: values exceed FP16's range: Exp /act/Exp reaches ",
        RANGE_STEP,
        "dense  MatMul    FP32",
    ),
    "log of a Softmax": lost_in_fp16(
        threads.log_of_a_softmax,
        "probabilities: values vanish in FP16 at Softmax /probabilities/Softmax: ",
        f"write Softmax and Log as LogSoftmax, or {RANGE_STEP}",
        "probabilities  Softmax   FP32",
    ),
    "complement of probabilities": lost_in_fp16(
        threads.complement_of_probabilities,
        "logits: values of Sub /survival/Sub are small beside the offset that it subtracts: FP16's step at 1.0 is "
        "0.00049, ",
        "subtract the offset in FP32 before the layer, or run the layer and the one that computes its input in FP32",
        "logits  MatMul    FP32",
    ),
    "ArgMax of large logits": Trouble(
        threads.argmax_of_large_logits,
        [
            (
                LOSS_IN_FP16,
                ("logits: values exceed FP16's range: MatMul /logits/MatMul reaches ", f"  next step: {RANGE_STEP}"),
            ),
            (
                f"{SEARCH} --precision fp16 --tolerance agreement>=1",
                ("agreement>=1: 1 of 2 fused layers in FP32 meet the tolerance: ", "logits  MatMul    FP32"),
            ),
        ],
    ),
    "tanh GELU": Trouble(
        threads.tanh_gelu_of_large_activations,
        [(LOSS_IN_FP16, ("PASS",)), (SEARCH_IN_FP16, ("sqnr>=45: FP16 meets it already: nothing to do ",))],
    ),
    "sum over pixels": lost_in_fp16(
        threads.sum_over_many_pixels,
        "pool/ReduceSum: values exceed FP16's range: ReduceSum /pool/ReduceSum reaches ",
        RANGE_STEP,
        "pool/ReduceSum  ReduceSum  FP32",
    ),
    "weights beyond FP16": lost_in_fp16(
        threads.weights_beyond_fp16,
        "dense: weights of MatMul /dense/MatMul are beyond FP16's range: 1 of 256 values of ",
        RANGE_STEP,
        "dense  MatMul    FP32",
    ),
    "subnormal weights": lost_in_fp16(
        threads.subnormal_weights,
        "dense: weights of MatMul /dense/MatMul are below FP16's smallest value: ",
        f"scale the weights up and the result down, or {RANGE_STEP}",
        "dense  MatMul    FP32",
    ),
    "grid sample": lost_in_fp16(
        threads.grid_sample,
        "the step of FP16 is too large for the sampling points of GridSample /sample/GridSample: half a step at ",
        COORDINATE_STEP,
        "sample  GridSample  FP32",
    ),
    "flow lookup": lost_in_fp16(
        threads.flow_lookup,
        "coords: the step of FP16 is too large for the sampling points of GridSample /lookup/GridSample: half a step "
        "at ",
        COORDINATE_STEP,
        "coords  Add         FP32",
    ),
    "frame count": Trouble(
        threads.frame_count,
        [
            (
                SEARCH_IN_FP16,
                ("1 fused layer kept in FP32 by rule indices (values that become integers, indices or sizes): len.",),
            )
        ],
    ),
    "sinusoidal positions": lost_in_fp16(
        threads.sinusoidal_positions,
        "angles: the step of FP16 is too large for the angles of Sin /emb/Sin: half a step at ",
        COORDINATE_STEP,
        "emb/Sin  Sin       FP32",
    ),
    "phase of a vocoder": lost_in_fp16(
        threads.cumulative_sum,
        "wave: the step of FP16 is too large for the angles of Sin /wave/Sin: half a step at ",
        COORDINATE_STEP,
        "phase  CumSum    FP32",
    ),
    "phase of a vocoder in BF16": Trouble(
        threads.cumulative_sum,
        [
            (
                f"{LOSS} --runs bf16",
                (
                    "wave: the step of BF16 is too large for the angles of Sin /wave/Sin: half a step at ",
                    f"  next step: {COORDINATE_STEP}",
                ),
            )
        ],
    ),
    "angle of silent bins": lost_in_fp16(
        threads.angle_of_silent_bins,
        "values vanish in FP16 at ",
        f"scale the values up, or {RANGE_STEP}",
        "angle/Div  Div       FP32",
    ),
    "LSTM": Trouble(threads.lstm, [(SEARCH_IN_FP16, ("sqnr>=45: FP16 meets it already: nothing to do (~66",))]),
    "scales of a ConvTranspose": Trouble(
        lambda: threads.conv_transpose_scales(0),
        [
            (
                LOSS,
                (
                    "up: the weight scales of ConvTranspose /up/ConvTranspose are along the wrong axis: along axis 0 they "
                    "leave ",
                    "  next step: quantize the weight with axis 1, or raise the layer to FP16 or FP32",
                ),
            ),
            (f"{SEARCH} --tolerance sqnr>=30", ("up     ConvTranspose  FP32",)),
        ],
    ),
    "INT8 ConvTranspose in TensorRT 8.2": Trouble(
        lambda: threads.conv_transpose_scales(1),
        [
            (
                "inspect {net} --for 8.2.0.6",
                (
                    "an INT8 ConvTranspose with a weight scale for each output channel is refused or has wrong results in "
                    "TensorRT 8.0.1.6 to 8.2.0.6 (confirmed by NVIDIA, NVIDIA/TensorRT#1699). Write a scale for each input "
                    "channel (axis 0), or keep it in FP16 or FP32.",
                ),
            )
        ],
    ),
    "one scale of a depthwise Conv": Trouble(
        lambda: threads.depthwise_scales(None),
        [
            (
                LOSS,
                (
                    "depthwise: one channel of Conv /depthwise/Conv has much larger weights than the others: channel 5 "
                    "reaches ",
                    "  next step: use one weight scale per output channel, or raise the layer to FP16 or FP32",
                ),
            ),
            (LINT, ("one scale for a weight whose channels differ (accuracy): 1",)),
            (f"{SEARCH} --tolerance sqnr>=30", ("  simulated: PASS\n",)),
        ],
    ),
    "boxes beside scores": Trouble(
        threads.boxes_beside_scores,
        [
            (
                LOSS,
                (
                    "head: the parts of Concat /head/Concat share a scale: /boxes/pixels/Mul_output_0 reaches ",
                    "  next step: quantize each part before the Concat, or keep the Concat in FP16 or FP32",
                ),
            ),
            (f"{SEARCH} --tolerance sqnr>=30", ("head   Concat    FP32",)),
        ],
    ),
    "entropy range": Trouble(
        threads.rare_large_values,
        [
            (
                f"{LOSS} --runs int8 --calib-method entropy",
                ("head: entropy range ", "% of values clipped", "  next step: try another range, "),
            ),
            (
                f"{SEARCH} --tolerance sqnr>=25 --calib-method entropy",
                ("sqnr>=25: 1 other range meets the tolerance: ", "1 range by minmax"),
            ),
        ],
    ),
    "calibrated without the factor": Trouble(
        threads.outlier_channel,
        [
            (
                "preflight {net} {data} {calibration}",
                (
                    "unlike-inputs: calibration inputs differ from judged inputs: spread of x",
                    "the calibration inputs are 255 times larger, as where one is divided by 255 and the other is not",
                    "  Next: Prepare both with the same code.",
                ),
            )
        ],
        calibration_factor=255,
    ),
    "outlier channel": Trouble(
        threads.outlier_channel,
        [
            (
                f"{LOSS} --runs int8",
                (
                    "fc: 1 of 16 input channels sets the range: ",
                    "  next step: try SmoothQuant or another range, or raise the layer to FP16 or FP32",
                ),
            ),
            (f"{SEARCH} --tolerance sqnr>=30", ("equalization meets the tolerance", "  simulated: PASS\n")),
        ],
    ),
    "zero point": checked(
        lambda: qdq.conv("zero point"),
        "zero point other than 0 (refusal): ",
        "/in/q: INT8 with zero point 3",
        "Quantize symmetrically (ONNX Runtime: ActivationSymmetric and WeightSymmetric).",
    ),
    "UINT8": checked(
        lambda: qdq.conv("unsigned"),
        "UINT8 with zero point 0 (accuracy and refusal): ",
        "Quantized values above 127 are then clipped, without an error.",
        "Quantize to INT8 (ONNX Runtime: QuantType.QInt8; PyTorch: torch.int8).",
    ),
    "int32 bias": checked(
        lambda: qdq.conv("bias"),
        "DequantizeLinear on an int32 bias (accuracy and refusal): 1",
        "/bias/dq: read by /Conv",
        "Keep biases in floats (ONNX Runtime: QuantizeBias False), ",
    ),
    "clipped bias": checked(
        lambda: qdq.conv("clipped bias"),
        "/bias/dq: read by /Conv; 1 of 32 values clipped to INT32",
        "A value clipped to INT32 is wrong in every runtime: the product of its scales is too small.",
        "or quantize with ONNX Runtime 1.20.1 or later, which clips none.",
    ),
    "pair before the Add": checked(
        lambda: qdq.residual(extra=("add",)),
        "Q/DQ pair between a layer and its batch norm, residual Add or activation (accuracy and speed): 1",
        "/two/extra/q: between /two/Conv and /block/Add (Add)",
        "Remove the pair. Quantize only the inputs of the Conv, Gemm or MatMul and the other input of the Add.",
    ),
    "float skip": checked(
        lambda: qdq.residual(skip=False),
        "skip connection in floats beside a quantized branch (speed): 1",
        "Quantize the input of the Add that is the skip connection, and not the result of the Conv.",
    ),
    "transposed weight": checked(lambda: qdq.product(between="Transpose"), "0 findings in its Q/DQ nodes"),
}
"""The networks, by the name in the table."""


@pytest.mark.parametrize("name", TROUBLES)
def test_a_thread_gets_its_cause_and_way_round(name, run, tmp_path):
    trouble = TROUBLES[name]
    model, samples, *references = trouble.build()
    paths = {"net": tmp_path / "net.onnx", "out": tmp_path / "precision.json", "typed": tmp_path / "typed.onnx"}
    onnx.save(model, paths["net"])
    options = {"data": "", "reference": "", "calibration": ""}
    if samples:
        np.savez(tmp_path / "data.npz", **samples)
        options["data"] = f"--data {tmp_path / 'data.npz'}"
    if references:
        onnx.save(references[0], tmp_path / "fp32.onnx")
        options["reference"] = f"--reference {tmp_path / 'fp32.onnx'}"
    if trouble.calibration_factor is not None:
        np.savez(
            tmp_path / "calibration.npz",
            **{key: array * np.float32(trouble.calibration_factor) for key, array in samples.items()},
        )
        options["calibration"] = f"--calib-data {tmp_path / 'calibration.npz'}"
    for command, texts in trouble.steps:
        code, out, err = run(*command.format(**paths, **options).split())
        assert code in (0, 1), err
        for text in texts:
            assert text in out + err, f"{command}\n{out}\n{err}"


# -- the page ---------------------------------------------------------------------------------------------------------


def read_rows() -> list[list[str]]:
    """Returns the cells of the table of threads."""
    lines = PAGE.read_text().splitlines()
    table = lines[next(index for index, line in enumerate(lines) if line.startswith("| thread |")) + 2 :]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]


def test_the_counts_of_the_page_are_those_of_its_rows():
    counts = Counter((row[6], row[3] == "no") for row in read_rows())
    pattern = re.compile(r"^\| (solved|in part|not) \| [^|]+ \| (\d+) \| (\d+) \|$", re.MULTILINE)
    stated = {match[1]: (int(match[2]), int(match[3])) for match in pattern.finditer(PAGE.read_text())}
    assert stated == {verdict: (counts[verdict, True], counts[verdict, False]) for verdict in VERDICTS}
    assert sum(counts.values()) == len(read_rows()) >= 45
    assert counts["solved", True] >= 0.85 * sum(counts[verdict, True] for verdict in VERDICTS)


def test_each_row_names_one_thread_and_networks_that_are_tested():
    rows, used = read_rows(), set()
    assert len({row[0] for row in rows}) == len(rows)
    sources = {f"https://github.com/{thread}" for defect in KNOWN_DEFECTS.values() for thread in defect.threads.split()}
    for thread, complaint, cause, engine, network, prints, verdict, missing in rows:
        match = re.fullmatch(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\((https://github\.com/\1/(?:issues|pull)/\2)\)", thread)
        assert match is not None and complaint and prints and verdict in VERDICTS, thread
        assert engine == "no" or engine.startswith("yes: "), thread
        names = set() if network == "–" else set(network.split("; "))
        used |= names
        assert names <= set(TROUBLES), thread
        assert (missing == "–") is (verdict == "solved"), thread
        if verdict == "solved":
            assert not cause.startswith("not confirmed") and (names or match[3] in sources), thread
        elif verdict == "in part":
            assert names or match[3] in sources, thread
    assert used == set(TROUBLES)
