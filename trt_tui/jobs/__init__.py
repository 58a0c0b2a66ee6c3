"""Long work in a child process: what is asked of it, what it reports, and how it is stopped."""
