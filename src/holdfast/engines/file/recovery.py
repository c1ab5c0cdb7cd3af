"""Loading a store, and repairing it. Under the gate.

After damage the records are repaired (`repair.py`). After a failed sync the disk may not have what the file system
reads. Both end with a new start: write a snapshot of all records, close the segment with LAST and RELOAD, rename the
snapshot, begin a segment with RELOAD, set the mark, remove the older files. Files with lost changes are renamed
instead. LAST keeps other processes from appending to a segment that is about to be replaced, and the snapshot is
durable before its segment appears. So a process that dies in between leaves a store that the next one repairs in the
same way.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from holdfast.engines.file.changes import encode_record
from holdfast.engines.file.frames import Flag, Header
from holdfast.engines.file.journal import Journal
from holdfast.engines.file.loading import Damage, Loader, missing_segment
from holdfast.engines.file.records import Records
from holdfast.engines.file.repair import repair
from holdfast.engines.file.snapshots import remove_quietly, rename_new_file, snapshot_frames, write_temporary_file
from holdfast.engines.file.store_folder import disk_error
from holdfast.errors import EngineError

log = logging.getLogger("holdfast")

MOST_TRIES = 10
"""How often loading begins again because another process has removed files that a newer snapshot replaces."""


def load(journal: Journal, *, drop_ended: bool = False) -> Records:
    """Load the store, repair it if necessary, and let the journal stand at its end. Under the gate.

    `drop_ended`: write it anew without the jobs that have ended.
    After a failed sync only a process that opens the store writes it anew. The others stop.
    """
    is_open = journal.position.segment > 0
    try:
        if is_open and journal.marks.read().is_suspect:
            raise journal.suspect_error()
        records = _try_to_load(journal, drop_ended=drop_ended)
    except EngineError:
        raise
    except OSError as error:
        raise disk_error(f"{journal.folder.path} could not be loaded: {error}.", error) from error
    journal.was_loaded()
    return records


def _try_to_load(journal: Journal, *, drop_ended: bool) -> Records:
    for _ in range(MOST_TRIES):
        with suppress(FileNotFoundError):  # another process compacts, which needs no gate
            return _load(journal, drop_ended=drop_ended)
    return _load(journal, drop_ended=drop_ended)


def _load(journal: Journal, *, drop_ended: bool) -> Records:
    mark = journal.marks.read()
    is_suspect = mark.is_suspect or journal.runtime.fs.exists(journal.folder.suspect_path)
    segments, snapshots = journal.folder.numbers()
    if not segments and not snapshots:
        if mark.segment:
            raise missing_segment(journal, mark.segment)
        journal.begin(1, 1)
        if is_suspect:
            _trust_again(journal)
        return Records()
    loader = Loader(journal, mark)
    loader.load(segments, snapshots)
    records = loader.records
    for damage in loader.damages:
        log.error("The store in %s is damaged. %s", journal.folder.path, damage)
    records.lost_changes = sum(damage.is_loss for damage in loader.damages)
    if records.lost_changes:
        repair(records)
    if drop_ended:
        records.drop_ended()
    end = journal.last.flags & (Flag.LAST | Flag.RELOAD)
    if drop_ended or loader.damages or is_suspect or end == Flag.LAST | Flag.RELOAD:
        _begin_anew(journal, records, loader.damages, is_suspect=is_suspect)
    elif loader.has_torn_frames:  # a process that has read what was removed must load the store, too
        journal.rotate(Flag.RELOAD)
    elif end & Flag.LAST:
        journal.finish_rotation()
    return records


def _begin_anew(journal: Journal, records: Records, damages: Sequence[Damage], *, is_suspect: bool) -> None:
    """Write all records into a new snapshot, and go on in a new segment. Files with lost changes are kept."""
    folder, is_closed = journal.folder, bool(journal.last.flags & Flag.LAST)
    segments, snapshots = folder.numbers()
    segment, sequence = max((*segments, *snapshots)) + 1, journal.position.sequence + (not is_closed)
    first = Header(sequence, records.at, records.arrival, records.boot_hash, 0, folder.id)
    frames = snapshot_frames(first, map(encode_record, records.in_order()))
    # First, because the disk may have no space for it.
    temporary = write_temporary_file(journal.runtime, folder.temporary_path(), frames)
    if not is_closed:
        try:
            journal.append((), records.at, records.arrival, records.boot_hash, Flag.LAST | Flag.RELOAD)
            if not is_suspect:
                journal.sync()
        except EngineError:
            if not is_suspect:  # else no process appends to it, and the disk may refuse every write to it
                remove_quietly(journal.runtime, temporary)
                raise
    rename_new_file(journal.runtime, temporary, folder.snapshot_path(segment))
    journal.runtime.fs.sync_folder(folder.path)
    journal.begin(segment, sequence, Flag.RELOAD)
    _trust_again(journal)
    for path in {damage.path for damage in damages if damage.is_loss}:
        with suppress(FileNotFoundError):  # another process compacts, which needs no gate
            journal.runtime.fs.rename(path, path.with_name(path.name + ".damaged"))
    journal.remove_before(segment)
    journal.runtime.fs.sync_folder(folder.path)
    log.warning("The store in %s was written anew, beginning with segment %s.", folder.path, segment)


def _trust_again(journal: Journal) -> None:
    """Everything was written anew and synced after the sync that had failed."""
    journal.marks.set_suspect(False)
    journal.runtime.fs.remove(journal.folder.suspect_path)
