"""Bugs in the file engine: its copy in memory, its syncs, its snapshots."""

from code_mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "an acknowledged write of a file store is not synced",
        "engines/file/runner.py",
        'if self._options.durability == "durable":',
        "if False:",
        "A power failure takes back what was answered.",
        ("tests/engines/test_file_engine.py::test_class_durable_syncs_before_it_answers",),
    ),
    Mutant(
        "a read shows what is not synced",
        "engines/file/runner.py",
        "        results, _ = self._decide(commands)\n        self._sync()",
        "        results, _ = self._decide(commands)",
        "A power failure takes back what was shown.",
        ("tests/engines/test_file_engine.py::test_what_another_process_has_synced_is_not_synced_again",),
    ),
    Mutant(
        "renewals wait for the disk",
        "engines/file/runner.py",
        "if NEED_NO_SYNC.issuperset(map(type, commands)):",
        "if False:",
        "A slow disk lets leases expire.",
        ("tests/engines/test_file_engine.py::test_renewals_do_not_wait_for_the_disk",),
    ),
    Mutant(
        "leases outlive a restart of the host",
        "engines/file/runner.py",
        "        if self.replica.boot_hash == self._boot_hash:\n            return",
        "        if True:\n            return",
        "The boot clock begins at 0, so no lease expires for days.",
        ("tests/engines/test_file_engine.py::test_after_a_restart_of_the_host_every_lease_has_expired",),
    ),
    Mutant(
        "a full disk keeps a store of an earlier boot closed",
        "engines/file/runner.py",
        "            self._reserve.release()\n            self._append",
        "            self._append",
        "No stored job can be settled until space is freed.",
        ("tests/engines/test_file_engine.py::test_a_store_of_an_earlier_boot_can_be_opened_on_a_full_disk",),
    ),
    Mutant(
        "an interrupted call leaves a copy that is not that of the journal",
        "engines/file/runner.py",
        "            if self._must_load:\n",
        "            if False:\n",
        "This process and the others no longer agree about the jobs.",
        (
            "tests/engines/test_file_engine.py::test_an_enqueue_that_is_interrupted_anywhere_leaves_one_state_for_all_processes",
        ),
    ),
    Mutant(
        "opening a file store waits for the gate",
        "engines/file/runner.py",
        "records = load_without_gate(self.journal)",
        "records = None",
        "All writers wait for a process that loads many jobs.",
        ("tests/engines/test_file_engine.py::test_a_store_can_be_opened_and_read_while_another_process_has_the_gate",),
    ),
    Mutant(
        "a failed command of a batch is not undone",
        "engines/ledger/ledger.py",
        "            self.undo(step.changes or ())\n",
        "            pass\n",
        "A part of a command stays in memory, and later in the journal.",
        ("tests/engines/test_file_engine.py::test_a_command_that_raises_fails_alone",),
    ),
    Mutant(
        "no snapshot is ever written",
        "engines/file/compaction.py",
        "return sum(sizes) > times * limit",
        "return False",
        "The journal grows without limit.",
        ("tests/engines/test_file_engine.py::test_the_journal_is_replaced_by_snapshots_while_it_is_used",),
    ),
    Mutant(
        "a journal that an ended process has left stays long",
        "engines/file/compaction.py",
        "return self._is_due(TAKE_OVER_AT)",
        "return False",
        "Processes that live for a short time never compact it.",
        (
            "tests/engines/test_file_engine.py::test_a_journal_that_ended_processes_have_left_is_compacted_at_the_next_opening",
        ),
    ),
    Mutant(
        "every process writes a snapshot",
        "engines/file/compaction.py",
        "return self._runtime.fs.lock(self._folder.compaction_path)",
        "return self._runtime.fs.lock(self._folder.temporary_path())",
        "Snapshots of the same records fill the disk at the same time.",
        ("tests/engines/test_file_engine.py::test_only_one_process_writes_a_snapshot",),
    ),
)
