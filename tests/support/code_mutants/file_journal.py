"""Bugs in the files of the file engine: journal, mark, loading, repair."""

from code_mutants.mutant import Mutant

JOURNAL = "tests/engines/test_file_journal.py"
LOADING = "tests/engines/test_file_loading.py"
REPAIR = "tests/engines/test_file_repair.py"
CHANGES = "tests/engines/test_file_changes.py"

MUTANTS = (
    # While the store is in use
    Mutant(
        "damage below the mark looks like a frame that is being written",
        "engines/file/journal.py",
        "if mark.covers(segment, offset + 1):",
        "if False:",
        "A reader stops before a damaged frame for ever, and its answers stay as old as that.",
        (f"{JOURNAL}::test_damage_below_the_mark_is_noticed_while_the_store_is_in_use",),
    ),
    Mutant(
        "a rotation that was interrupted is not finished",
        "engines/file/journal.py",
        "        self.finish_rotation()\n        segment, offset, sequence = self.position",
        "        segment, offset, sequence = self.position",
        "Frames are appended behind the end of a segment, where no reader looks.",
        (f"{JOURNAL}::test_a_process_that_dies_inside_a_rotation_leaves_it_to_the_next",),
    ),
    Mutant(
        "a segment without an end is still used",
        "engines/file/journal.py",
        "if mark.segment > segment:",
        "if False:",
        "A process goes on with a segment that another one has replaced after a failed sync.",
        (f"{JOURNAL}::test_a_suspect_segment_that_cannot_be_written_is_replaced",),
    ),
    Mutant(
        "a segment that became shorter is not noticed",
        "engines/file/journal.py",
        "if size < offset:",
        "if False:",
        "A process that has read a tail that was cut off answers from it.",
        (f"{LOADING}::test_a_process_that_has_read_a_torn_tail_loads_the_store",),
    ),
    Mutant(
        "the old segment is not synced before the next one appears",
        "engines/file/journal.py",
        "            self.sync()\n        except BaseException:",
        "            pass\n        except BaseException:",
        "A power failure takes frames of a segment that counts as complete.",
        (f"{LOADING}::test_a_power_failure_leaves_a_prefix_with_all_that_was_synced",),
    ),
    Mutant(
        "an append that failed is not taken back",
        "engines/file/journal.py",
        "                file.truncate(offset)\n            except OSError as second:",
        "                pass\n            except OSError as second:",
        "Readers without the gate meet a part of a frame until the next writer comes.",
        (f"{JOURNAL}::test_an_append_that_fails_has_written_nothing",),
    ),
    Mutant(
        "the payload of another generation is taken",
        "engines/file/changes.py",
        "if copy is None or (copy.generation, copy.arrival) != (job.generation, job.arrival):",
        "if copy is None:",
        "After a lost change a job runs with the arguments of the job before it.",
        (f"{CHANGES}::test_the_payload_of_another_job_is_not_taken",),
    ),
    # Loading
    Mutant(
        "a folder that a dead process made counts as durable",
        "engines/file/store_folder.py",
        "                fs.sync_folder(lowest.parent)",
        "                pass",
        "A power failure takes the folder with the first jobs of a store.",
        (f"{LOADING}::test_a_new_store_is_durable_with_its_first_job",),
    ),
    Mutant(
        "headers do not say what is synced",
        "engines/file/loading.py",
        "synced = max(synced, synced_by_later_frames(rest, 1, self._folder.id))",
        "pass",
        "Without the mark a damaged byte takes all later jobs with it.",
        (f"{LOADING}::test_damage_is_found_by_a_later_header_if_the_mark_is_lost",),
    ),
    Mutant(
        "a stale frame is used",
        "engines/file/loading.py",
        "if synced is not None and begin >= synced:",
        "if False:",
        "Frames that were cut off come back after a second power failure.",
        (f"{LOADING}::test_a_frame_with_another_number_is_no_frame_of_the_tail",),
    ),
    Mutant(
        "an unreadable file counts as one lost change",
        "engines/file/loading.py",
        "if not is_readable:",
        "if False:",
        "A segment of zeros is replaced by an empty one.",
        (f"{LOADING}::test_a_file_without_a_frame_is_refused_and_left_as_it_is",),
    ),
    Mutant(
        "others go on after a torn tail was cut off",
        "engines/file/recovery.py",
        "        journal.rotate(Flag.RELOAD)",
        "        pass",
        "A process that has read the tail appends behind it.",
        (f"{LOADING}::test_a_process_that_has_read_a_torn_tail_loads_the_store",),
    ),
    Mutant(
        "a running process trusts the disk after a failed sync",
        "engines/file/recovery.py",
        "if is_open and journal",
        "if False and journal",
        "It writes the store anew with answers that may never have been on the disk.",
        (f"{JOURNAL}::test_a_failed_sync_stops_every_process",),
    ),
    # Repair
    Mutant(
        "a lost parent is forgotten",
        "engines/file/repair.py",
        "                self._add_lost_parent(*parent)",
        "                pass",
        "Its children wait for ever.",
        (f"{REPAIR}::test_the_children_of_a_lost_parent_are_those_of_a_failed_one",),
    ),
    Mutant(
        "a lane keeps its lost head",
        "engines/file/repair.py",
        "head=None if head is None else head.id,",
        "head=lane.head,",
        "The lane stops for ever.",
        (f"{REPAIR}::test_the_next_job_of_a_lane_is_its_head_if_the_head_is_lost",),
    ),
)
