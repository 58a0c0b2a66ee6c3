"""BatchNormalization behind what a group computed.

Source: "Convolution and Scale" and "Scale and Activation" of TensorRT's catalog. Its parser makes one Scale layer of a
BatchNormalization in inference form.
"""

from trt_tui.core.network.fusion.growing import Growing, Match, Members


def match(growing: Growing, members: Members) -> Match:
    """Takes the BatchNormalization in; in training form, with several outputs, it computes on its own."""
    layer = growing.sole_user(members.tail)
    if layer is None:
        return Match(reason="what the group computes is read elsewhere too")
    if layer.op_type != "BatchNormalization":
        return Match(reason="no BatchNormalization follows")
    if len(layer.outputs) != 1:
        return Match(reason="it is in training form and computes on its own")
    return Match((layer,), layer.outputs[0])
