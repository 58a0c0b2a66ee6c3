"""Files: read from elsewhere with limits, written whole or not at all, temporary ones cleared."""
