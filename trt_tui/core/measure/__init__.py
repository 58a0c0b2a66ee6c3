"""What is judged, and by which figures: judged outputs, metrics, targets, errors at the groups, shares, records."""
