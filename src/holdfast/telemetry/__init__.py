"""Events, the bus that passes them to listeners, the feed between processes, and log lines."""
