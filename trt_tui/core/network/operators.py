"""Operators by what TensorRT makes of them: the sets that the rules of fusion, precision and measuring name."""

from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8

PRODUCTS = INT8.operators
"""Operators that can run in INT8."""

POINTWISE = frozenset(
    "Add Sub Mul Div Pow Sqrt Exp Log Erf Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid "
    "HardSwish Softplus Softsign Clip Abs Neg Reciprocal Gelu Mish ThresholdedRelu Floor Ceil Round Sin Cos Min Max "
    "Sum Where Sign Swish".split())
"""Operators whose results depend on the values at the same place alone."""

REDUCTIONS = frozenset("ReduceMean ReduceMax ReduceSum ReduceL2 ReduceSumSquare".split())
"""Reductions that decomposed normalisations and Softmax are made of."""

NORMALISATIONS = frozenset(
    "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization RMSNormalization".split())
"""Operators that normalise, which scales, shifts and activations fuse behind."""

COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Split Gather Dropout Expand Tile DepthToSpace "
    "SpaceToDepth GatherElements GatherND ReverseSequence Compress Trilu Pad Concat".split())
"""Operators that move values and compute none."""

SIZE_INPUTS = {
    "NonZero": (0,), "Compress": (1,), "Unique": (0,), "NonMaxSuppression": (0, 1), "Loop": (0, 1), "Range": (0, 1, 2),
    "ConstantOfShape": (0,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Tile": (1,), "Resize": (2, 3), "Pad": (1,),
    "TopK": (1,), "OneHot": (1,), "CenterCropPad": (1,)}
"""Inputs whose values decide how many values an operator makes."""

FUSED_COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout Slice Split Gather Expand DepthToSpace "
    "SpaceToDepth".split())
"""Copies that stay with what computed their values."""

RANGE_PRESERVING_COPIES = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout".split())
"""Copies that hand on all values, so that their range is the same."""

ORDER_SELECTING_OPERATORS = frozenset(("TopK",))
"""Operators that pick values by comparing them."""

INTEGER_OPERATORS = frozenset(
    "QLinearConv QLinearMatMul ConvInteger MatMulInteger DynamicQuantizeLinear QuantizeLinear DequantizeLinear".split())
"""Operators that compute on integer codes."""

SCATTER_OPERATORS = frozenset(("ScatterElements", "ScatterND"))
"""Operators that TensorRT-RTX 1.7 does not build with a reduction, nor ONNX Runtime runs with one in FP16."""

UNSUPPORTED_FLOAT_TYPES = {
    Precision.FP16: frozenset("Celu MeanVarianceNormalization TensorScatter".split()),
    Precision.BF16: frozenset("Celu ConvTranspose GRU HardSwish LpNormalization LpPool MeanVarianceNormalization Mish "
                              "TensorScatter".split())}
"""Operators that TensorRT-RTX 1.7 builds in FP32 and refuses in a 16-bit type."""

INITIALIZER_ONLY_INPUTS = {"STFT": (2,)}
"""Float inputs that TensorRT's parser reads from initializers alone, no Cast between, by operator."""
