#!/bin/sh
# Builds model.onnx in the precisions of its config.
# Made by trt-tui. Usage:
#
#  sh trtexec.sh 10  TensorRT 10, strongly typed
#  sh trtexec.sh 10-weak  TensorRT 8.6 to 10, weakly typed with implicit quantization
#  sh trtexec.sh 11  TensorRT 11, where every network is strongly typed
#
# Further arguments are passed on to trtexec. TRTEXEC names another trtexec.
set -eu
cd -- "$(dirname -- "$0")"
trtexec=${TRTEXEC:-trtexec}
release=${1:-}
[ "$#" -eq 0 ] || shift

case "$release" in
10)
  # TensorRT 10, strongly typed.
  # TF32 is cleared: --noTF32.
  "$trtexec" \
  --onnx=trtexec.sh.typed.onnx \
  --stronglyTyped \
  --noTF32 \
  --saveEngine=trtexec.sh.engine \
  --skipInference \
  "$@"
  ;;
10-weak)
  # TensorRT 8.6 to 10, weakly typed with implicit quantization.
  # TF32 is cleared: --noTF32.
  # The cache's first line names EntropyCalibration2, the one calibrator that trtexec has, however its ranges were measured.
  # Should TensorRT not take the cache, its first line names the release: TRT-8601-EntropyCalibration2 for 8.6.1, TRT-101601-... for 10.16.1.
  # Layers that TensorRT's parser adds to a node are not told anything; the Polygraphy script tells them too.
  # TensorRT itself quantizes the weights, with scales of its own.
  # 14 tensors inside INT8 groups not calibrated; given the group's range, which only matters if TensorRT does not fuse them.
  "$trtexec" \
  --onnx=trtexec.sh.base.onnx \
  --fp16 \
  --int8 \
  --calib=trtexec.sh.cache \
  --precisionConstraints=obey \
  --layerPrecisions=/avgpool/GlobalAveragePool:fp16,/fc/Gemm:fp32 \
  --layerOutputTypes=/layer2/relu2/Relu:fp16,/avgpool/GlobalAveragePool:fp16,/fc/Gemm:fp32 \
  --noTF32 \
  --saveEngine=trtexec.sh.engine \
  --skipInference \
  "$@"
  ;;
11)
  # TensorRT 11, where every network is strongly typed.
  # TF32 is cleared: --noTF32.
  "$trtexec" \
  --onnx=trtexec.sh.typed.onnx \
  --noTF32 \
  --saveEngine=trtexec.sh.engine \
  --skipInference \
  "$@"
  ;;
*)
  echo "usage: sh $0 10|10-weak|11 [more trtexec options]" >&2
  exit 2
  ;;
esac
