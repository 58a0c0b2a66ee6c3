"""The reading of ONNX files and the description of a network by layers, fusion groups and a layer tree."""
