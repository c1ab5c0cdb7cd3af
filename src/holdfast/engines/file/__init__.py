"""The file engine: the ledger over a journal that all processes of a host share. Start with `engine.py`."""
