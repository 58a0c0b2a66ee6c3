"""The jobs of the background process, the requests that start them, the events they send, and their cancellation."""
