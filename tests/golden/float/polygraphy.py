"""Precisions of model.onnx

  polygraphy convert polygraphy.py.base.onnx -o polygraphy.py.engine \\
  --trt-network-postprocess-script polygraphy.py --precision-constraints obey \\
  --fp16 --int8 --calibration-cache polygraphy.py.cache --calibration-base-class IInt8MinMaxCalibrator

Made by trt-tui for TensorRT 8.6 to 10, weakly typed, with implicit quantization.
TF32 is off: Polygraphy clears it without --tf32.
TensorRT itself quantizes the weights, with scales of its own.
14 tensors inside INT8 groups not calibrated; given the group's range, which only matters if TensorRT does not fuse them.
"""

from __future__ import annotations

import json

import tensorrt as trt

FLAGS = ['fp16', 'int8']
TOLD = json.loads(
  '{"precisions": {"/avgpool/GlobalAveragePool": "fp16", "/fc/Gemm": "fp32"}, "output_types": {"/layer2/relu2/Rel'
  'u": "fp16", "/avgpool/GlobalAveragePool": "fp16", "/fc/Gemm": "fp32"}, "ranges": {"image": 3.779296875, "/conv'
  '1/Conv_output_0": 4.5625, "/bn1/BatchNormalization_output_0": 4.5625, "/relu/Relu_output_0": 4.5625, "/layer1/'
  'conv1/Conv_output_0": 4.625, "/layer1/bn1/BatchNormalization_output_0": 4.625, "/layer1/relu1/Relu_output_0": '
  '4.625, "/layer1/conv2/Conv_output_0": 7.763175010681152, "/layer1/bn2/BatchNormalization_output_0": 7.76317501'
  '0681152, "/layer1/Add_output_0": 7.763175010681152, "/layer1/relu2/Relu_output_0": 7.763175010681152, "/layer2'
  '/conv1/Conv_output_0": 4.5546875, "/layer2/bn1/BatchNormalization_output_0": 4.5546875, "/layer2/relu1/Relu_ou'
  'tput_0": 4.5546875, "/layer2/conv2/Conv_output_0": 5.597262859344482, "/layer2/bn2/BatchNormalization_output_0'
  '": 5.597262859344482, "/layer2/downsample.0/Conv_output_0": 7.763175010681152, "/layer2/downsample.1/BatchNorm'
  'alization_output_0": 7.763175010681152, "/layer2/Add_output_0": 7.763175010681152, "/layer2/relu2/Relu_output_'
  '0": 7.763175010681152}, "inner": {"/conv1/Conv": 4.5625, "/bn1/BatchNormalization": 4.5625, "/relu/Relu": 4.56'
  '25, "/layer1/conv1/Conv": 4.625, "/layer1/bn1/BatchNormalization": 4.625, "/layer1/relu1/Relu": 4.625, "/layer'
  '1/conv2/Conv": 7.763175010681152, "/layer1/bn2/BatchNormalization": 7.763175010681152, "/layer1/Add": 7.763175'
  '010681152, "/layer1/relu2/Relu": 7.763175010681152, "/layer2/conv1/Conv": 4.5546875, "/layer2/bn1/BatchNormali'
  'zation": 4.5546875, "/layer2/relu1/Relu": 4.5546875, "/layer2/conv2/Conv": 5.597262859344482, "/layer2/bn2/Bat'
  'chNormalization": 5.597262859344482, "/layer2/downsample.0/Conv": 7.763175010681152, "/layer2/downsample.1/Bat'
  'chNormalization": 7.763175010681152, "/layer2/Add": 7.763175010681152, "/layer2/relu2/Relu": 7.763175010681152'
  '}, "constants": {}, "names": ["/conv1/Conv", "/bn1/BatchNormalization", "/relu/Relu", "/layer1/conv1/Conv", "/'
  'layer1/bn1/BatchNormalization", "/layer1/relu1/Relu", "/layer1/conv2/Conv", "/layer1/bn2/BatchNormalization", '
  '"/layer1/Add", "/layer1/relu2/Relu", "/layer2/conv1/Conv", "/layer2/bn1/BatchNormalization", "/layer2/relu1/Re'
  'lu", "/layer2/conv2/Conv", "/layer2/bn2/BatchNormalization", "/layer2/downsample.0/Conv", "/layer2/downsample.'
  '1/BatchNormalization", "/layer2/Add", "/layer2/relu2/Relu", "/avgpool/GlobalAveragePool", "/Flatten", "/fc/Gem'
  'm"]}'
)


def postprocess(network):
  """Sets precisions, output types and dynamic ranges; called by Polygraphy with the parsed network."""
  if not hasattr(trt.ILayer, "set_output_type"):
  raise SystemExit(f"TensorRT {trt.__version__} is strongly typed only and takes no layer precisions: "
  "build the typed ONNX network instead.")
  if "bf16" in FLAGS and not hasattr(trt, "bfloat16"):
  raise SystemExit(f"TensorRT {trt.__version__} has no BF16, which this config asks for.")
  missing = tell(trt, network, **TOLD)
  if missing:
  raise SystemExit(f"{len(missing)} layers that this script sets are not in the network, for example "
  f"{', '.join(missing[:3])}: it was made for another one, or for other node names.")


def layer_of(trt_layer_name: str, metadata: str = "", names: Container[str] = ()) -> str | None:
  """The network's layer that a layer of a parsed TensorRT network stands for, or None.

  TensorRT's ONNX parser names a layer after its node, and further layers of a node that it decomposes ``<node>_<n>``
  (onnx-tensorrt, ``ImporterContext::registerLayer``); the metadata of each is ``[ONNX Layer: <node>]``. The metadata
  goes first, since ``conv_1`` can be a second layer of ``conv`` as well as a node. A layer inside an If or Loop
  stands for that, its metadata being ``[ONNX Layer: <inner node> | <graph> | <outer node> (<operator>)]``. Layers
  that the parser adds of its own, like ``ONNXTRT_Broadcast_2``, stand for none.

  Args:
  names: The network's layers, anything with ``in``; without them the name of the metadata, else the layer's own
  is taken as it is.
  """
  import re

  for piece in re.split("[\x1e\x1f]", metadata or ""):
  found = re.fullmatch(r"\[ONNX Layer: (.*)\]", piece.strip(), re.DOTALL)
  if found:
  inner, *around = found[1].split(" | ")
  nodes = (found[1], inner, *(re.sub(r" \([^()]*\)$", "", node) for node in around))
  known = [node for node in nodes if node in names] if names else [inner]
  if known:
  return known[0]
  if not names or trt_layer_name in names:
  return trt_layer_name or None
  base, _, number = trt_layer_name.rpartition("_")
  return base if number.isdigit() and base in names else None


def tell(trt: Any, network: Any, precisions: Mapping[str, str], output_types: Mapping[str, str],
  ranges: Mapping[str, float], inner: Mapping[str, float] | None = None,
  constants: Mapping[str, float] | None = None, names: Iterable[str] = ()) -> list[str]:
  """Sets precisions, output types and ranges in a parsed TensorRT network that is weakly typed.

  Args:
  trt: The ``tensorrt`` module.
  network: An ``INetworkDefinition``.
  precisions: As all further ones, the field of `Weak` of that name; precisions may be plain words like "fp16".
  The last three are for implicit quantization.

  Returns:
  The layers that were to be told a precision and are not in the network.
  """
  types = {"fp32": trt.float32, "fp16": trt.float16, "int8": trt.int8}
  if hasattr(trt, "bfloat16"):
  types["bf16"] = trt.bfloat16
  floats = [types[word] for word in types if word != "int8"]
  computes_in_int8 = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")
  moves = ("SHUFFLE", "IDENTITY", "CAST", "SLICE", "CONCATENATION", "GATHER", "PADDING", "SQUEEZE", "UNSQUEEZE",
  "SCATTER", "ONE_HOT", "REVERSE_SEQUENCE", "FILL", "NON_ZERO", "NMS")
  untold = ("CONSTANT", "SHAPE", "ASSERTION", "QUANTIZE", "DEQUANTIZE", "CONDITION", "CONDITIONAL_INPUT",
  "CONDITIONAL_OUTPUT", "ITERATOR", "LOOP_OUTPUT", "RECURRENCE", "TRIP_LIMIT")
  inner, constants, names = inner or {}, constants or {}, frozenset(names)
  held: dict[str, float] = {}

  def give(tensor: Any, amax: float | None) -> None:
  if amax is not None:
  tensor.set_dynamic_range(-amax, amax)
  held[tensor.name] = amax

  for index in range(network.num_inputs):
  tensor = network.get_input(index)
  give(tensor, ranges.get(tensor.name))
  missing = dict.fromkeys(precisions)
  for index in range(network.num_layers):
  layer = network.get_layer(index)
  name = layer_of(layer.name, layer.metadata, names) or ""
  missing.pop(name, None)
  results = [(position, layer.get_output(position)) for position in range(layer.num_outputs)]
  results = [(position, tensor) for position, tensor in results
  if tensor is not None and tensor.dtype in floats and not tensor.is_shape_tensor]
  kind = layer.type.name
  precision = str(precisions[name]) if name in precisions else None
  if results and precision and kind not in moves + untold and (precision != "int8" or kind in computes_in_int8):
  layer.precision = types[precision]
  for position, tensor in results:
  # A constant's layer bears its name; what the parser added to reshape a tensor has its range; any other
  # tensor that the parser added has the range of the node's result.
  amax = ranges.get(tensor.name)
  if amax is None and kind == "CONSTANT":
  amax = constants.get(layer_of(layer.name, "", constants) or "") if constants else None
  elif amax is None and kind in moves and (not name or layer.name != name):
  source = layer.get_input(0)
  amax = held.get(source.name) if source is not None else None
  elif amax is None:
  amax = inner.get(name)
  give(tensor, amax)
  if name in output_types and kind not in untold:
  layer.set_output_type(position, types[str(output_types[name])])
  return list(missing)
