"""BatchNormalization behind what a group computed.

Source: "Convolution and Scale" and "Scale and Activation" of TensorRT's catalog. Its parser makes one Scale layer of a
BatchNormalization in inference form.
"""

from trt_tui.core.network.fusion.grouping import FusionGroupDraft, FusionGroupingState, FusionRuleMatch


def match_batch_normalisation(grouping: FusionGroupingState, group_draft: FusionGroupDraft) -> FusionRuleMatch:
    """Takes the BatchNormalization in; in training form, with several outputs, it computes on its own."""
    layer = grouping.find_sole_reader(group_draft.output_tensor)
    if layer is None:
        return FusionRuleMatch(reason="what the group computes is read elsewhere too")
    if layer.op_type != "BatchNormalization":
        return FusionRuleMatch(reason="no BatchNormalization follows")
    if len(layer.outputs) != 1:
        return FusionRuleMatch(reason="it is in training form and computes on its own")
    return FusionRuleMatch((layer,), layer.outputs[0])
