"""The fusion rules. They decide which layers TensorRT runs as one kernel in one precision.

Each rule is a function. It examines a growing group, or a layer that could start a group. It returns a
`FusionRuleMatch` with the layers that join the group, or None. `groups` applies the rules in order. Their source is the
Layer Fusion Catalog of TensorRT's documentation; each rule names its entry.
"""
