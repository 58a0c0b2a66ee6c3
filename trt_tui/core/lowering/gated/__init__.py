"""The gated graph: one network in which precision is a runtime input.

Every group is computed in FP32 or in what its gates say: lower float precisions (inputs, weights and results rounded
by Cast pairs) and codes (Q and DQ in FP32 arithmetic, with the scales the target holds). Gates, scales and weights are
fed, so that any config is one run of one loaded session. A weight is rounded once for a config, outside the graph, by
the same arithmetic.

Beside the gated network ("test") the graph can hold a reference branch in FP32 and, for each group, a copy whose inputs
come from the reference ("isolated"), with reductions on each pair of tensors so that only sums leave the session.

`assembly` joins the graph and `gated_graph` says what it is fed. A gate is an ``If`` on CPUs (`control_flow`) and
a ``Where`` on GPUs (`data_flow`); the graph's inputs, the walk over a group's layers (`group_body`) and roundings know
nothing of that.
"""
