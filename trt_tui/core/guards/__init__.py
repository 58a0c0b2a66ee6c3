"""Guards: what makes figures say less than they seem to, each in a module of its own; `registry` lists them."""
