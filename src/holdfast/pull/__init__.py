"""Pulling: a process claims jobs in its own code, with or without a worker on the same store."""
