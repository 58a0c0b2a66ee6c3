"""Long work in a child process: the requests to it, the events from it, and how it is stopped."""
