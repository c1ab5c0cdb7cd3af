"""Generates the Lua rules of the Redis engine from the ledger: `make lua`.

The ledger is written in a small part of Python, and each construct of that part has one translation. Everything else is
refused, with file, line and what to write instead. docs/decisions/0026-redis-rules-are-generated.md says why.

The files: `value_types.py` reads annotations, `sources.py` finds the functions, `scopes.py` says where a variable is
declared, `expressions.py`, `conditions.py`, `loops.py` and `calls.py` translate expressions, `statements.py` the rest,
`build.py` writes the file.
"""
