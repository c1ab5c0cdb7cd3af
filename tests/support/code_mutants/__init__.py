"""Bugs to plant in the package, outside the ledger: what each breaks, where, and which tests notice.

The ledger has its own mutants (`ledger_mutants.py`), because the examples of the contract judge it. What is here lives
elsewhere: in a store's files and locks, between processes, in waits, in cost, in users' transactions, at the edges of
the API. `run_mutants.py` plants one at a time in a copy of the source tree and runs the tests that the mutant names.
"""

from code_mutants import (
    cli,
    client,
    codec,
    django,
    doctor,
    file,
    file_engine,
    file_journal,
    isolation,
    manager,
    model,
    names,
    postgres,
    postgres_rules,
    pull,
    redis,
    redis_client,
    redis_cluster,
    redis_durability,
    sqlite,
    transactions,
    worker,
)
from code_mutants.mutant import DoesNotApply, Mutant

__all__ = ["MUTANTS", "PARTS", "DoesNotApply", "Mutant"]

PARTS: dict[str, tuple[Mutant, ...]] = {
    "sqlite": sqlite.MUTANTS,
    "file": file.MUTANTS,
    "file engine": file_engine.MUTANTS,
    "file journal": file_journal.MUTANTS,
    "postgres rules": postgres_rules.MUTANTS,
    "postgres": postgres.MUTANTS,
    "redis": redis.MUTANTS,
    "redis client": redis_client.MUTANTS,
    "redis cluster": redis_cluster.MUTANTS,
    "redis durability": redis_durability.MUTANTS,
    "worker": worker.MUTANTS,
    "manager": manager.MUTANTS,
    "isolation": isolation.MUTANTS,
    "names": names.MUTANTS,
    "pull": pull.MUTANTS,
    "client": client.MUTANTS,
    "codec": codec.MUTANTS,
    "cli": cli.MUTANTS,
    "doctor": doctor.MUTANTS,
    "transactions": transactions.MUTANTS,
    "django": django.MUTANTS,
    "model": model.MUTANTS,
}
MUTANTS = tuple(mutant for mutants in PARTS.values() for mutant in mutants)
