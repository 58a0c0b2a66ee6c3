"""Sets of operators with a common property, schemas of operators outside ONNX, plugins, unsupported and random
operators.

ONNX has no schemas for the domains of ONNX Runtime and TensorRT. A file with another form of such an operator is
damaged.

A runtime executes a plugin or a custom operator only if it has loaded the library. Without a library for ONNX Runtime,
the simulation ends before the node. Layers behind the node run in engines only, keep FP32, and have no simulated
accuracy.

A parser refuses an operator in every precision. Sources: `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1 for every
operator of ONNX up to opset 25 (a test repeats the query), and onnx-tensorrt's docs/operators.md, which also lacks
them. TensorRT implements DeformConv as a plugin. Of ONNX Runtime's own operators, that release builds
`_SUPPORTED_CONTRIB_OPERATORS`, which it recognises by name only. An operator that neither ONNX nor ONNX Runtime has is
a plugin.

TensorRT-RTX 1.7.1 also refuses some forms of operators that it reads. These were found by building ONNX's own node
tests with it.

Random operators: those of ONNX, and of onnx-tensorrt's importers, which read RandomNormal, RandomUniform and their
`Like`, and refuse a Dropout in training mode.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from trt_tui.core.network.model_editing import collect_by_key, list_subgraphs
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

PRODUCTS = INT8.operators
"""Operators that multiply and can run in INT8."""

INNER_PRODUCTS = frozenset("Attention DeformConv Einsum GRU LSTM RNN".split())
"""Operators that multiply inside and cannot run in INT8."""

POINTWISE = frozenset(
    "Add Sub Mul Div Pow Sqrt Exp Log Erf Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid "
    "HardSwish Softplus Softsign Clip Abs Neg Reciprocal Gelu Mish ThresholdedRelu Floor Ceil Round Sin Cos Min Max "
    "Sum Where Sign Swish".split()
)
"""Operators whose results depend only on the values at the same position."""

REDUCTIONS = frozenset("ReduceMean ReduceMax ReduceSum ReduceL2 ReduceSumSquare".split())
"""Reductions that occur in decomposed normalisations and Softmax."""

NORMALISATIONS = frozenset(
    "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization RMSNormalization".split()
)
"""Normalisation operators; scales, shifts and activations fuse behind them."""

COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Split Gather Dropout Expand Tile DepthToSpace "
    "SpaceToDepth GatherElements GatherND ReverseSequence Compress Trilu Pad Concat".split()
)
"""Operators that only move values."""

SIZE_INPUTS = {
    "NonZero": (0,),
    "Compress": (1,),
    "Unique": (0,),
    "NonMaxSuppression": (0, 1),
    "Loop": (0, 1),
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
    "Resize": (2, 3),
    "Pad": (1,),
    "TopK": (1,),
    "OneHot": (1,),
    "CenterCropPad": (1,),
}
"""The indices of inputs whose values determine the size of the result, by operator."""

FUSED_COPIES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Dropout Slice Split Gather Expand DepthToSpace "
    "SpaceToDepth".split()
)
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
    Precision.BF16: frozenset(
        "Celu ConvTranspose GRU HardSwish LpNormalization LpPool MeanVarianceNormalization Mish TensorScatter".split()
    ),
}
"""Operators that TensorRT-RTX 1.7 builds in FP32 but refuses in a 16-bit type, by precision."""

INITIALIZER_ONLY_INPUTS = {"STFT": (2,)}
"""The indices of float inputs that TensorRT's parser reads only from initializers, without a Cast between, by operator.
"""


ORT_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

TENSORRT_DOMAIN = "trt"
"""The domain of TensorRT's own operators."""

_QDQ_INPUTS = "x scale zero_point?"

_SIGNATURES = {
    ORT_DOMAIN: {
        "QuantizeLinear": f"{_QDQ_INPUTS} -> y; axis",
        "DequantizeLinear": f"{_QDQ_INPUTS} -> y; axis",
    },
    TENSORRT_DOMAIN: {
        **dict.fromkeys(
            ("TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", "TRT_INT4QuantizeLinear", "TRT_INT4DequantizeLinear"),
            f"{_QDQ_INPUTS} -> y; axis block_size output_dtype",
        ),
        "TRT_MXFP8DequantizeLinear": "x scale -> y; axis block_size output_dtype",
        "TRT_MXFP8DynamicQuantize": "x -> y y_scale; axis block_size output_dtype",
        "TRT_FP4DynamicQuantize": "x scale -> y y_scale; axis block_size output_dtype scale_type",
    },
}
"""Inputs, outputs and attributes (ONNX Runtime 1.32 and onnx-tensorrt 10.16) by domain and operator.

``?`` marks an optional input. Attributes are optional integers.
"""


def _parse_signature(op_type: str, domain: str, signature: str) -> OpSchema:
    parameters_text, _, attributes_text = signature.partition(";")
    options = OpSchema.FormalParameterOption
    inputs, outputs = (
        [
            OpSchema.FormalParameter(
                name.rstrip("?"),
                "tensor(float)",
                param_option=options.Optional if name.endswith("?") else options.Single,
            )
            for name in names.split()
        ]
        for names in parameters_text.split("->")
    )
    attributes = [OpSchema.Attribute(name, OpSchema.AttrType.INT, required=False) for name in attributes_text.split()]
    return OpSchema(op_type, domain, 1, inputs=inputs, outputs=outputs, attributes=attributes)


FOREIGN_SCHEMAS = {
    (domain, op_type): _parse_signature(op_type, domain, signature)
    for domain, signatures in _SIGNATURES.items()
    for op_type, signature in signatures.items()
}
"""The schemas by domain and operator. The types of inputs and outputs are not part of them."""


RUNTIME_DOMAINS = frozenset(
    (
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.experimental",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
    )
)
"""Operator domains, besides that of ONNX, whose operators ONNX Runtime executes without a library."""

RUNTIME_ONLY_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""Operators of ONNX Runtime that use the domain of ONNX but are not part of the ONNX standard."""

EARLY_RUNTIME_OPERATORS = frozenset(("LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"))
"""Operators that ONNX Runtime supports in every opset, but ONNX defines only from a later opset on."""

_PLUGIN_DOMAIN = "trt_tui.plugin"


def is_plugin(node: ir.Node) -> bool:
    """Returns True if a node needs an operator library. Nodes in its subgraphs count too."""
    if not node.domain:
        is_foreign = not onnx.defs.has(node.op_type) and node.op_type not in RUNTIME_ONLY_OPERATORS
    else:
        is_foreign = node.domain not in RUNTIME_DOMAINS
    return is_foreign or any(is_plugin(inner_node) for graph in list_subgraphs(node) for inner_node in graph)


def find_plugin_ending_simulation(
    node: ir.Node, input_names: Sequence[str], blocking_plugins: Mapping[str, str]
) -> str:
    """Returns the name of the plugin that prevents the simulation of a node; "" if no plugin does.

    It is the node itself, or the first plugin among the nodes that it depends on.

    Args:
        input_names: The tensors that the node reads.
        blocking_plugins: The plugin before each tensor that cannot be simulated, by tensor name.
    """
    if is_plugin(node):
        return node.name or ""
    return next((blocking_plugins[tensor] for tensor in input_names if tensor in blocking_plugins), "")


def blocking_plugin_reason(node: ir.Node, plugin_name: str) -> str:
    """Returns the reason why a layer cannot be simulated and runs in engines only: it is a plugin or depends on one."""
    if node.name == plugin_name:
        domain_text = f" of {node.domain}" if node.domain else ""
        return (
            f"a plugin or custom "
            f"operator{domain_text}: only an engine runs it; --ort-ops LIB.so adds it to the simulation"
        )
    return (
        f"after the plugin {plugin_name}: kept in FP32, since only an engine runs it (unless --ort-ops LIB.so "
        "provides it)"
    )


def plugin_note(plugins: Sequence[tuple[str, str]]) -> str:
    """Returns the note for the user that the simulation of a network ends at plugins.

    Args:
        plugins: Names and operators of the nodes that end the simulation.
    """
    plugins_text = name_list_text([f"{name} ({operator})" for name, operator in plugins])
    return (
        f"Plugins: {plugins_text}. The simulation ends there; layers after them run in engines only, in FP32. "
        "--plugins LIB.so loads a library into TensorRT, --ort-ops LIB.so one into ONNX Runtime."
    )


@contextlib.contextmanager
def move_plugins_to_own_domain(model: ir.Model) -> Iterator[None]:
    """Moves operators that ONNX's opset lacks into a separate domain while a with block runs.

    The moved nodes are plugins in the domain of ONNX, and `EARLY_RUNTIME_OPERATORS`. onnx's version converter ignores
    other domains, but refuses an operator that the opset does not define.
    """
    opset = model.graph.opset_imports.get("", 0)
    nodes = [
        node
        for node in model.graph.all_nodes()
        if node.domain == ""
        and (
            not onnx.defs.has(node.op_type)
            or node.op_type in EARLY_RUNTIME_OPERATORS
            and not onnx.defs.has(node.op_type, opset, "")
        )
    ]
    for node in nodes:
        node.domain = _PLUGIN_DOMAIN
    if nodes:
        model.graph.opset_imports[_PLUGIN_DOMAIN] = 1
    try:
        yield
    finally:
        restore_plugin_domains(model)


def restore_plugin_domains(model: ir.Model) -> None:
    """Moves plugins back to the domain of ONNX, from which `move_plugins_to_own_domain` had moved them."""
    for node in model.graph.all_nodes():
        if node.domain == _PLUGIN_DOMAIN:
            node.domain = ""
    model.graph.opset_imports.pop(_PLUGIN_DOMAIN, None)


UNSUPPORTED = frozenset(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd DFT Det DynamicQuantizeLinear ImageDecoder MatMulInteger "
    "MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement "
    "OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique".split()
)
"""The ONNX operators that no TensorRT reads."""

_SUPPORTED_CONTRIB_OPERATORS = frozenset(
    "Gelu SimplifiedLayerNormalization SkipSimplifiedLayerNormalization QuantizeLinear "
    "DequantizeLinear Trilu Pad Range GatherND GridSample".split()
)
"""The operators of ONNX Runtime that TensorRT-RTX 1.7 builds."""

_QUANTIZED_OPERATOR_PATTERN = re.compile(
    r"QLinear|Q(Gemm|Attention|EmbedLayerNormalization|MoE|Ordered)|(Conv|MatMul)Integer|DynamicQuantize|"
    r"MatMul(NBits|Bnb4|FpQ4)|GatherBlockQuantized"
)
"""The beginnings of the names of ONNX's and ONNX Runtime's operators on quantized values, except Q and DQ."""


def refuse_quantized_operators(model: ir.Model, file_name: str) -> None:
    """Refuses a network with operators on quantized values other than Q and DQ.

    Raises:
        InputError: There is such an operator; the error names the first node.
    """
    refused_nodes = [
        node
        for graph in (model.graph, *(function.graph for function in model.functions.values()))
        for node in graph.all_nodes()
        if node.op_identifier() not in model.functions
        and (not node.domain or node.domain in RUNTIME_DOMAINS)
        and _QUANTIZED_OPERATOR_PATTERN.match(node.op_type)
    ]
    if refused_nodes:
        first = refused_nodes[0]
        operators = name_list_text(list(dict.fromkeys(node.op_type for node in refused_nodes)), max_count=4)
        others = f" and {len(refused_nodes) - 1} more" if len(refused_nodes) > 1 else ""
        raise InputError(
            f"{file_name} is quantized with {operators} ({first.name or first.outputs[0].name}{others})",
            "TensorRT reads none of these operators: it reads quantized values between QuantizeLinear and "
            "DequantizeLinear only",
            "Quantize the FP32 network again in QDQ format: quantize_static or MatMulNBitsQuantizer with "
            "quant_format=QuantFormat.QDQ, or ModelOpt.",
        )


def operator_form_refusal_reason(node: ir.Node) -> str:
    """Returns a phrase for the form of an operator that TensorRT-RTX 1.7 refuses although it supports the operator; ""
    if there is no such form.
    """
    operator = node.op_type
    if node.domain:
        return ""
    if operator not in _UINT8_OPERATORS and any(
        value is not None and value.dtype is ir.DataType.UINT8 for value in node.inputs
    ):
        return f"{operator} of UINT8, which only a Cast may read"
    return next(
        (f"{operator} {form}" for form, is_refused in _REFUSED_FORMS.get(operator, {}).items() if is_refused(node)), ""
    )


def _has_several_outputs(node: ir.Node) -> bool:
    return sum(bool(value.name) for value in node.outputs) > 1


def _build_attribute_check(
    attribute: str, default: str, is_refused: Callable[[str], bool]
) -> Callable[[ir.Node], bool]:
    return lambda node: is_refused(node.attributes.get_string(attribute, default) or default)


_REFUSED_FORMS: dict[str, dict[str, Callable[[ir.Node], bool]]] = {
    "AveragePool": {"with dilations": lambda node: set(node.attributes.get_ints("dilations", [1]) or [1]) != {1}},
    "LayerNormalization": {"with further results": _has_several_outputs},
    "LpPool": {"of another norm than the first or second": lambda node: node.attributes.get_int("p", 2) not in (1, 2)},
    "MaxPool": {"that yields indices": _has_several_outputs},
    "Resize": {
        "with antialiasing": lambda node: bool(node.attributes.get_int("antialias", 0)),
        "by tf_crop_and_resize": _build_attribute_check(
            "coordinate_transformation_mode", "half_pixel", lambda word: word == "tf_crop_and_resize"
        ),
        "that keeps the aspect ratio": _build_attribute_check(
            "keep_aspect_ratio_policy", "stretch", lambda word: word != "stretch"
        ),
    },
    "ScatterND": {"with a reduction": _build_attribute_check("reduction", "none", lambda word: word != "none")},
}
"""The refused forms of each operator, with a function that returns True if a node has the form."""

_UINT8_OPERATORS = frozenset("Cast QuantizeLinear DequantizeLinear".split())
"""Operators that can read UINT8, or for which another note says that TensorRT does not support them."""


def unsupported_operator_reason(node: ir.Node) -> str:
    """Returns the reason why no TensorRT release supports the operator of a node; "" if one does, or if it is a plugin."""
    is_unsupported = (
        node.domain in RUNTIME_DOMAINS and node.op_type not in _SUPPORTED_CONTRIB_OPERATORS
        if node.domain
        else node.op_type in UNSUPPORTED
    )
    domain_text = f" of {node.domain}" if node.domain else ""
    return f"no TensorRT has {node.op_type}{domain_text}: only the simulation runs it" if is_unsupported else ""


def unsupported_operator_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """Returns notes for users on operators without TensorRT support, one sentence for each domain and each form."""
    nodes = tuple(nodes)
    nodes_by_domain = collect_by_key((node.domain, node) for node in nodes if unsupported_operator_reason(node))
    notes = []
    for domain, affected_nodes in nodes_by_domain.items():
        operators = name_list_text(list(dict.fromkeys(node.op_type for node in affected_nodes)))
        domain_text, others_text = (
            f" of {domain}" if domain else "",
            f" and {len(affected_nodes) - 1} more" if len(affected_nodes) > 1 else "",
        )
        notes.append(
            f"No TensorRT reads "
            f"{operators}{domain_text} ({affected_nodes[0].name}{others_text}), so that without a plugin of that name "
            f"no engine can be built from this network: {_workaround_text(domain)}."
        )
    nodes_by_form = collect_by_key((form, node) for node in nodes if (form := operator_form_refusal_reason(node)))
    return notes + [
        f"TensorRT-RTX 1.7 refuses "
        f"{form} ({name_list_text([refused_node.name or '' for refused_node in affected_nodes], max_count=2)}): the "
        "simulation runs it, but no engine can be built from this network."
        for form, affected_nodes in nodes_by_form.items()
    ]


def _workaround_text(domain: str) -> str:
    if domain == "com.microsoft":
        return "export it without operators specific to ONNX Runtime (its graph optimizations, its quantizers)"
    return "leave those layers to another runtime"


RANDOM_OPERATORS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)
"""The ONNX operators whose results are random."""


def is_random(node: ir.Node) -> bool:
    """Returns True if two executions of a node on the same inputs can differ."""
    return not node.domain and (
        node.op_type in RANDOM_OPERATORS or node.op_type == "Dropout" and _is_active_dropout(node)
    )


def _is_active_dropout(node: ir.Node) -> bool:
    """Returns True if a Dropout is in training mode, or if its mode is computed."""
    training_input = node.inputs[2] if len(node.inputs) > 2 else None
    constant = training_input.const_value if training_input is not None else None
    return training_input is not None and (constant is None or bool(constant.numpy().any()))


def randomness_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """Returns the notes for the user on nodes with random results: random numbers, random choices and active Dropout."""
    random_nodes = [node for node in nodes if is_random(node)]
    multinomial_names = [node.name or "" for node in random_nodes if node.op_type == "Multinomial"]
    random_nodes = [node for node in random_nodes if node.op_type != "Multinomial"]
    random_names = [node.name or "" for node in random_nodes if node.op_type != "Dropout"]
    dropout_names = [node.name or "" for node in random_nodes if node.op_type == "Dropout"]
    notes = []
    if random_names:
        notes.append(
            f"Random numbers are drawn in {name_list_text(random_names, max_count=2)}: every simulated run gets the "
            "same numbers, so runs differ by precision only. An engine draws other numbers, and its values contain "
            "that noise: make them an input to measure engines."
        )
        sequences = {
            (node.op_type, *sorted(f"{name}={attribute.value}" for name, attribute in node.attributes.items()))
            for node in random_nodes
        }
        if len(sequences) < len(random_nodes):
            notes.append(
                "Random operators with the same attributes get the same numbers, but differ in an engine: "
                "give them different seeds."
            )
    if multinomial_names:
        notes.append(
            f"Random choices differ from run to run in {name_list_text(multinomial_names, max_count=2)}: later tensors "
            "differ by chance too. Judge a tensor before them (--judge)."
        )
    if dropout_names:
        notes.append(
            f"Dropout is in training mode in "
            f"{name_list_text(dropout_names, max_count=2)}: every simulated run drops the "
            "same values, and TensorRT refuses it. Export the network in evaluation mode."
        )
    return notes
