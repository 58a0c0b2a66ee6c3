"""Guards: checks whether measured results can mislead. Each guard has its own module; `registry` lists them."""
