"""Guards: checks whether measured results can mislead. `registry` lists them."""
