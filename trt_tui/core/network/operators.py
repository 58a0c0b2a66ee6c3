"""Sets of operators with a common property in TensorRT, for the rules on fusion, precision and measurement."""

from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8

PRODUCTS = INT8.operators
"""Operators that multiply and can run in INT8."""

INNER_PRODUCTS = frozenset("Attention DeformConv Einsum GRU LSTM RNN".split())
"""Operators that multiply inside and cannot run in INT8."""

POINTWISE = frozenset(
    "Add Sub Mul Div Pow Sqrt Exp Log Erf Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid "
    "HardSwish Softplus Softsign Clip Abs Neg Reciprocal Gelu Mish ThresholdedRelu Floor Ceil Round Sin Cos Min Max "
    "Sum Where Sign Swish".split())
"""Operators whose results depend only on the values at the same position."""

REDUCTIONS = frozenset("ReduceMean ReduceMax ReduceSum ReduceL2 ReduceSumSquare".split())
"""Reductions that occur in decomposed normalisations and Softmax."""

NORMALISATIONS = frozenset(
    "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization RMSNormalization".split())
"""Normalisation operators; scales, shifts and activations fuse behind them."""

COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Split Gather Dropout Expand Tile DepthToSpace "
    "SpaceToDepth GatherElements GatherND ReverseSequence Compress Trilu Pad Concat".split())
"""Operators that only move values."""

SIZE_INPUTS = {
    "NonZero": (0,), "Compress": (1,), "Unique": (0,), "NonMaxSuppression": (0, 1), "Loop": (0, 1), "Range": (0, 1, 2),
    "ConstantOfShape": (0,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Tile": (1,), "Resize": (2, 3), "Pad": (1,),
    "TopK": (1,), "OneHot": (1,), "CenterCropPad": (1,)}
"""The indices of inputs whose values determine the size of the result, by operator."""

FUSED_COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout Slice Split Gather Expand DepthToSpace "
    "SpaceToDepth".split())
"""Copies that TensorRT fuses with the layer that computed their values."""

RANGE_PRESERVING_COPIES = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout".split())
"""Copies whose result contains all values of the input, so that the range is the same."""

ORDER_SELECTING_OPERATORS = frozenset(("TopK",))
"""Operators that select values by comparing them."""

INTEGER_OPERATORS = frozenset(("QuantizeLinear", "DequantizeLinear"))
"""Operators that read or write quantized values."""

SCATTER_OPERATORS = frozenset(("ScatterElements", "ScatterND"))
"""Operators that, with a reduction, TensorRT-RTX 1.7 does not build and ONNX Runtime does not run in FP16."""

UNSUPPORTED_FLOAT_TYPES = {
    Precision.FP16: frozenset("Celu MeanVarianceNormalization TensorScatter".split()),
    Precision.BF16: frozenset("Celu ConvTranspose GRU HardSwish LpNormalization LpPool MeanVarianceNormalization Mish "
                              "TensorScatter".split())}
"""Operators that TensorRT-RTX 1.7 builds in FP32 but refuses in a 16-bit type, by precision."""

INITIALIZER_ONLY_INPUTS = {"STFT": (2,)}
"""The indices of float inputs that TensorRT's parser reads only from initializers, without a Cast between, by operator.
"""
