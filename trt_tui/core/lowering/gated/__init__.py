"""The gated graph: one ONNX graph in which the precision of each fusion group is a runtime input.

The gates of a group select FP32, a lower float precision or a quantized type. In a lower float precision, Cast pairs
round inputs, weights and results. In a quantized type, Q and DQ compute in FP32 arithmetic with the scales that the
engine stores. Gates, scales and weights are inputs of the graph. Therefore one loaded inference session executes every
config. A weight is rounded once per config, outside the graph, by the same arithmetic.

The network with gates is the test branch. The graph can also contain a reference branch in FP32. In an isolated branch,
each group reads its inputs from the reference. Errors are reduced to sums inside the graph, so that only sums leave the
session.

`assembly` builds the graph, reduces a graph on a CPU to one config without gates, and cuts it into pieces. `gated_graph`
makes its feeds. A gate is an ``If`` on CPUs and a ``Where`` on GPUs (`gates`). The graph's inputs, the walk over a
group's layers and the roundings are independent of this choice.
"""
