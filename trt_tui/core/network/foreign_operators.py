"""The operators of ONNX Runtime and TensorRT whose inputs and attributes the program reads, with their schemas.

ONNX has no schemas for these domains. A file with another form of such an operator is damaged.
"""

from onnx.defs import OpSchema

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
        **dict.fromkeys(("TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", "TRT_INT4QuantizeLinear",
                         "TRT_INT4DequantizeLinear"), f"{_QDQ_INPUTS} -> y; axis block_size output_dtype"),
        "TRT_MXFP8DequantizeLinear": "x scale -> y; axis block_size output_dtype",
        "TRT_MXFP8DynamicQuantize": "x -> y y_scale; axis block_size output_dtype",
        "TRT_FP4DynamicQuantize": "x scale -> y y_scale; axis block_size output_dtype scale_type",
    },
}
"""Inputs, outputs and attributes (ONNX Runtime 1.32 and onnx-tensorrt 10.16) by domain and operator.

``?`` marks an optional input, ``*`` any number of inputs, ``!`` a required attribute. Attributes are INT by default.
"""


def _parse_signature(op_type: str, domain: str, signature: str) -> OpSchema:
    parameters_text, _, attributes_text = signature.partition(";")
    inputs, outputs = (
        [OpSchema.FormalParameter(name.rstrip("?*"), "tensor(float)", param_option=_PARAMETER_OPTIONS.get(
            name[-1], OpSchema.FormalParameterOption.Single)) for name in names.split()]
        for names in parameters_text.split("->"))
    attributes = []
    for text in attributes_text.split():
        name, _, type_name = text.partition(":")
        attributes.append(OpSchema.Attribute(name.rstrip("!"), getattr(OpSchema.AttrType, type_name or "INT"),
                                             required=name.endswith("!")))
    return OpSchema(op_type, domain, 1, inputs=inputs, outputs=outputs, attributes=attributes)


_PARAMETER_OPTIONS = {"?": OpSchema.FormalParameterOption.Optional, "*": OpSchema.FormalParameterOption.Variadic}

FOREIGN_SCHEMAS = {(domain, op_type): _parse_signature(op_type, domain, signature)
                   for domain, signatures in _SIGNATURES.items() for op_type, signature in signatures.items()}
"""The schemas by domain and operator. The types of inputs and outputs are not part of them."""
