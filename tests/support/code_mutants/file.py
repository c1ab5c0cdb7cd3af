"""Bugs in the file engine: its folder, its waits, a full disk, and the command that prints its files."""

from code_mutants.mutant import Mutant

FOLDER = "tests/engines/test_file_folder.py"
PROCESSES = "tests/engines/test_file_processes.py"
DISK = "tests/engines/test_file_disk.py"
INSPECT = "tests/edges/test_cli_file.py"

MUTANTS = (
    # The folder
    Mutant(
        "a link is followed",
        "engines/file/folder_checks.py",
        'if status.kind == "link":',
        'if status.kind == "links":',
        "Another user can let a store be written anywhere.",
        (f"{FOLDER}::test_a_folder_that_is_not_safe_is_refused_and_nothing_is_written",),
    ),
    Mutant(
        "the owner of the folder does not matter",
        "engines/file/folder_checks.py",
        "if status.user != user:",
        "if status.user < 0:",
        "Two users write one store, and each makes files that the other cannot open.",
        (f"{FOLDER}::test_a_folder_of_another_user_is_refused",),
    ),
    Mutant(
        "a folder that every user may write to is accepted",
        "engines/file/folder_checks.py",
        "if status.permissions & WRITABLE_BY_ALL:",
        "if status.permissions & WRITABLE_BY_ALL and False:",
        "Every user of the host can put files into the store.",
        (f"{FOLDER}::test_a_folder_that_is_not_safe_is_refused_and_nothing_is_written",),
    ),
    Mutant(
        "a network disk is accepted",
        "engines/file/folder_checks.py",
        "if is_network_file_system(kind) and not allow_network_disk:",
        "if is_network_file_system(kind) and allow_network_disk:",
        "Two hosts write at once, because a lock of one is not seen by the other.",
        (f"{FOLDER}::test_a_network_file_system_is_refused_unless_the_user_allows_it",),
    ),
    Mutant(
        "a folder with files of others becomes a store",
        "engines/file/store_folder.py",
        "            self._refuse_files_of_others()\n",
        "",
        "The files of a store are mixed with those of a project that has the same name.",
        (f"{FOLDER}::test_a_folder_with_files_of_others_is_refused_and_left_alone",),
    ),
    Mutant(
        "a new file has what the umask leaves",
        "file_locks.py",
        "os.fchmod(fd, status.st_mode & 0o777 | 0o600)",
        "pass",
        "A process with a strict umask makes files that it cannot open again.",
        (f"{FOLDER}::test_folders_have_mode_0700_and_files_0600_whatever_the_umask",),
    ),
    Mutant(
        "old temporary files stay",
        "engines/file/store_folder.py",
        "        self._remove_unused_temporary_files()\n",
        "",
        "Each killed process leaves a file as large as a snapshot for ever.",
        (f"{FOLDER}::test_other_files_beside_a_store_are_left_alone",),
    ),
    # Files that are moved
    Mutant(
        "a read does not look whether the folder is still there",
        "engines/file/runner.py",
        "    def _read(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:\n"
        "        self._folder.check_identity()\n",
        "    def _read(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:\n",
        "A process answers from a store that no other process can find.",
        (f"{PROCESSES}::test_a_read_of_a_folder_that_is_no_longer_there_is_refused",),
    ),
    # A full disk
    Mutant(
        "the reserve is filled from the space that it has released",
        "engines/reserve.py",
        "self.grow(self.refill_bytes, spare_bytes=STEP_BYTES)",
        "self.grow(self.refill_bytes)",
        "Each enqueue on a full disk empties and fills the reserve, and logs an error.",
        (f"{DISK}::test_a_full_disk_refuses_jobs_as_storage_full_and_nothing_is_written",),
    ),
    Mutant(
        "a snapshot is written on a full disk",
        "engines/file/compaction.py",
        "if reserve is not None and reserve.size == 0:",
        "if False:",
        "A snapshot takes the space of the reserve, and nothing can be settled.",
        (f"{DISK}::test_no_snapshot_takes_the_space_of_the_reserve",),
    ),
    Mutant(
        "the reserve has one size for any number of jobs",
        "engines/file/runner.py",
        "LEAST_RESERVE_BYTES + self.replica.live_jobs() * RESERVE_BYTES_PER_JOB",
        "LEAST_RESERVE_BYTES",
        "On a full disk a part of the jobs that wait can be settled, and the others cannot.",
        (f"{DISK}::test_the_reserve_grows_with_the_jobs_that_wait_up_to_a_limit",),
    ),
    # Looking inside
    Mutant(
        "a write that is under way counts as damage",
        "engines/file/inspect.py",
        "                if offset >= synced_to:",
        "                if offset > len(data):",
        "The command calls every store damaged that is in use.",
        (f"{INSPECT}::test_the_end_of_a_write_that_is_under_way_is_no_damage",),
    ),
    Mutant(
        "damage behind the mark is taken for a write that is under way",
        "engines/file/inspect.py",
        "synced_to = mark.offset if mark.segment == number else 0",
        "synced_to = 0",
        "The command says that a damaged store is sound.",
        (f"{INSPECT}::test_the_same_before_the_mark_is_damage",),
    ),
    Mutant(
        "the tokens of leases are printed",
        "cli/file.py",
        "if name not in SECRETS}",
        "if name}",
        "A listing of the journal lets its readers settle the jobs of others.",
        (f"{INSPECT}::test_json_has_one_object_per_line_with_whole_records_and_no_tokens",),
    ),
)
