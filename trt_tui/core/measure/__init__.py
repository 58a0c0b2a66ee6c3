"""The measured values of a run: judged outputs, metrics, targets, errors at the fusion groups, error shares and
records."""
