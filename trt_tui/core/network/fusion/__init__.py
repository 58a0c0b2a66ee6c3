"""The fusion rules, which decide the layers that TensorRT runs as one kernel in one precision.

Each rule is a function. It examines a growing group, or a layer that could start one, and returns a `FusionRuleMatch`
with the layers that join, or None if it declines. `groups` applies the rules in order. Their source is the Layer
Fusion Catalog of TensorRT's documentation; each rule names its entry.
"""
