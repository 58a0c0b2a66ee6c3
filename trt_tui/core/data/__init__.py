"""Samples and labels, users' scripts, dumps of tensors, and stamps of the files that results depend on."""
