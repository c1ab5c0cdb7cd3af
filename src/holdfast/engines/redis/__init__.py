"""The engine of Redis and Valkey. Start with `engine.py`."""
