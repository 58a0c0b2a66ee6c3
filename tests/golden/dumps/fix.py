"""Of first.npz and second.npz.

Keeps the layers that make these tensors in FP32. Use it where the first errors began:

  polygraphy run MODEL.onnx --trt --fp16 --precision-constraints obey --trt-network-postprocess-script fix.py

Made by trt-tui for TensorRT 8.6 to 10; a strongly typed release (11) has its precisions in the ONNX file.
"""

from __future__ import annotations

import tensorrt as trt

TENSORS = [
  '/layer1/bn1/BatchNormalization_output_0',
  '/layer1/conv1/Conv_output_0',
  '/layer1/relu1/Relu_output_0',
]


def postprocess(network):
  """Sets the precision and the output type of layers; called by Polygraphy with the parsed network."""
  if not hasattr(trt.ILayer, "set_output_type"):
  raise SystemExit(f"TensorRT {trt.__version__} is strongly typed only and takes no layer precisions: "
  "build a typed ONNX network instead.")
  missing = set(TENSORS)
  for index in range(network.num_layers):
  layer = network.get_layer(index)
  outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
  if missing_here := {tensor.name for tensor in outputs} & set(TENSORS):
  missing -= missing_here
  if all(tensor.dtype in (trt.float32, trt.float16) for tensor in outputs):
  layer.precision = trt.float32
  for number in range(layer.num_outputs):
  layer.set_output_type(number, trt.float32)
  if missing:
  raise SystemExit(f"{len(missing)} of {len(TENSORS)} tensors are not in the network, for example "
  f"{', '.join(sorted(missing)[:3])}: it is another one than the dumps are of.")
