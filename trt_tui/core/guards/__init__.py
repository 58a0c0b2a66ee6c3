"""Guards: checks whether measured results can mislead."""
