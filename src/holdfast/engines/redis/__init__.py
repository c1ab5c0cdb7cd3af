"""The Redis and Valkey engine: the rules run in the server, as one script. `engine.py` is where to start."""
