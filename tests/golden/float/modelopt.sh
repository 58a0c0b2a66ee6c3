{
 "quantize": {
  "nodes_to_quantize": [
  "/conv1/Conv$",
  "/layer1/conv1/Conv$",
  "/layer1/conv2/Conv$",
  "/layer2/conv1/Conv$",
  "/layer2/conv2/Conv$",
  "/layer2/downsample\\.0/Conv$"
  ],
  "nodes_to_exclude": [
  "/avgpool/GlobalAveragePool$",
  "/Flatten$",
  "/fc/Gemm$"
  ]
 },
 "autocast": {
  "nodes_to_exclude": [
  "/fc/Gemm$"
  ]
 },
 "_usage": [
  "import json",
  "lists = json.load(open(\"modelopt.sh\"))",
  "from modelopt.onnx.quantization import quantize",
  "quantize('modelopt.sh.base.onnx', quantize_mode=\"int8\", calibration_method=\"max\", calibration_data=DATA, calibration_cache_path='modelopt.sh.cache',",
  "  high_precision_dtype=\"fp32\", enable_gemv_detection_for_trt=False,",
  "  output_path='modelopt.sh.base.int8.onnx', **lists[\"quantize\"])",
  "import onnx",
  "from modelopt.onnx.autocast import convert_to_mixed_precision",
  "typed = convert_to_mixed_precision('modelopt.sh.base.int8.onnx', low_precision_type=\"fp16\", keep_io_types=True,",
  "  data_max=float(\"inf\"), **lists[\"autocast\"])",
  "onnx.save(typed, 'modelopt.sh.base.typed.onnx')"
 ],
 "_notes": [
  "Patterns are matched by re.match against the node names of the network that is written beside this file; TF32 is off: build the result with trtexec --noTF32.",
  "modelopt.sh.cache holds the config's ranges; they take the place of those that ModelOpt measures, so that DATA may be a few samples.",
  "ModelOpt's list gives the other input of a residual Add no Q/DQ; the typed ONNX export has them.",
  "6 corrected biases are left out: they make up for the codes of the typed ONNX export, which has them.",
  "MatMuls of attention over more than 512 tokens are left out whatever is asked.",
  "AutoCast has rules of its own beside the list; data_max=inf turns off the one by value."
 ]
}
