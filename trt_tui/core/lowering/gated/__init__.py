"""The gated graph: one ONNX graph in which the precision of each fusion group is a runtime input.

Every group is computed in FP32 or as its gates state: in lower float precisions (inputs, weights and results rounded by
Cast pairs) and quantized types (Q and DQ in FP32 arithmetic, with the scales that the target stores). Gates, scales and
weights are inputs of the graph, so that any config is one execution of one loaded inference session. A weight is
rounded once per config, outside the graph, by the same arithmetic.

The gated network is the test branch. The graph can also contain a reference branch in FP32 and, for each group, a copy
whose inputs come from the reference (isolated branch). Reductions on each pair of tensors make sure that only sums
leave the session.

`assembly` builds the graph and `gated_graph` makes its feeds. A gate is an ``If`` on CPUs and a ``Where``
on GPUs (`gates`). `pieces` reduces a graph on a CPU to one config, without gates. The graph's inputs, the walk over a
group's layers (`group_body`) and the roundings are independent of this choice.
"""
