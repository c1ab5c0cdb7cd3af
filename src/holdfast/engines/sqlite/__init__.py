"""The SQLite engine. Start with `engine.py`."""
