"""Networks as they are read: layers, opening, fusion groups, the layer tree."""
