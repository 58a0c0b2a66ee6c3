"""Samples and labels, users' scripts, and the files that figures depend on."""
