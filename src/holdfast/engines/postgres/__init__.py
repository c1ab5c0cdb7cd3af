"""The PostgreSQL engine: many hosts, one database. Its rules run in the server. Start with `engine.py`."""
