"""What puts zeros in place of the NaN of a Softmax over masked values alone.

Source: PyTorch's exporters write it behind the Softmax of a scaled_dot_product_attention with a mask.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members


def match(growing: Growing, members: Members) -> Match:
    """Takes IsNaN and Where in, behind a Softmax that nothing else reads."""
    if members.operator != "Softmax":
        return Match(reason=f"{members.operator} is no Softmax")
    users = growing.users_inside(members.tail)
    if {one.op_type for one in users} != {"IsNaN", "Where"} or len(users) != 2 or growing.is_output(members.tail):
        return Match(reason="no IsNaN and Where are all that reads it")
    guard, where = sorted(users, key=lambda one: one.op_type)
    if growing.sole_user(guard.outputs[0]) is not where or where.inputs[0] != guard.outputs[0] \
            or set(growing.dynamic_inputs(where)) != {guard.outputs[0], members.tail}:
        return Match(reason="the Where does not choose between it and a constant")
    return Match((guard, where), where.outputs[0])
