"""The simulated disk loses what a real one may lose. Stores that forget a sync are caught by it."""

import threading
from collections.abc import Callable

import pytest
from intercepted_files import Call, InterceptedFiles
from simulated_disk import LOSSES, DiskImage, Loss, SimulatedDisk
from simulated_files import ROOT, SimulatedFiles

from holdfast.files import Files

SEEDS = range(40)
JOURNAL = f"{ROOT}/journal"


def run_and_cut(store: Callable[[Files, Callable[[bytes], None]], None]) -> list[tuple[DiskImage, int]]:
    """Run the store; it calls its second argument with what it acknowledges. Answers the disk after each of its calls,
    and how many values were acknowledged by then."""
    disk = SimulatedDisk()
    files = InterceptedFiles(SimulatedFiles(disk), ROOT)
    acknowledged: list[bytes] = []
    cuts: list[tuple[DiskImage, int]] = []
    files.after = lambda call: cuts.append((disk.image(), len(acknowledged)))
    store(files, acknowledged.append)
    cuts.append((disk.image(), len(acknowledged)))
    return cuts


def lost(cuts: list[tuple[DiskImage, int]], read: Callable[[Files], list[bytes]]) -> int:
    """How many power cuts have lost an acknowledged value."""
    return sum(
        len(read(SimulatedFiles(image.after_power_cut(seed)))) < acknowledged
        for image, acknowledged in cuts
        for seed in SEEDS
    )


# A store that appends lines to a file


def read_lines(files: Files) -> list[bytes]:
    if not files.exists(JOURNAL):
        return []
    lines = files.read_bytes(JOURNAL).split(b"\n")[:-1]
    good = [line == b"%03d" % number for number, line in enumerate(lines)]
    return lines[: good.index(False)] if False in good else lines


def append_lines(
    files: Files, acknowledge: Callable[[bytes], None], *, sync: bool = True, sync_folder: bool = True
) -> None:
    with files.create(JOURNAL) as file:
        if sync_folder:
            files.sync_folder(ROOT)
        for number in range(5):
            file.write_at(file.size(), b"%03d\n" % number)
            if sync:
                file.sync()
            acknowledge(b"%03d" % number)


def test_a_store_that_syncs_file_and_folder_loses_nothing() -> None:
    assert lost(run_and_cut(append_lines), read_lines) == 0


def test_a_store_that_forgets_to_sync_the_file_is_caught() -> None:
    cuts = run_and_cut(lambda files, acknowledge: append_lines(files, acknowledge, sync=False))
    assert lost(cuts, read_lines) > 0


def test_a_store_that_forgets_to_sync_the_folder_is_caught() -> None:
    cuts = run_and_cut(lambda files, acknowledge: append_lines(files, acknowledge, sync_folder=False))
    assert lost(cuts, read_lines) > 0


# A store that replaces a file


def replace_file(
    files: Files, acknowledge: Callable[[bytes], None], *, sync: bool = True, sync_folder: bool = True
) -> None:
    for number in range(1, 4):
        with files.create(JOURNAL + ".tmp") as file:
            file.write_at(0, bytes([number]) * 2_000)
            if sync:
                file.sync()
        files.rename(JOURNAL + ".tmp", JOURNAL)
        if sync_folder:
            files.sync_folder(ROOT)
        acknowledge(bytes([number]))


def read_value(files: Files) -> list[bytes]:
    """As many values as were acknowledged at least."""
    content = files.read_bytes(JOURNAL) if files.exists(JOURNAL) else b""
    return [b""] * content[0] if content and content == content[:1] * 2_000 else []


def test_a_store_that_renames_after_the_sync_loses_nothing() -> None:
    assert lost(run_and_cut(replace_file), read_value) == 0


def test_a_store_that_renames_before_the_content_is_durable_is_caught() -> None:
    cuts = run_and_cut(lambda files, acknowledge: replace_file(files, acknowledge, sync=False))
    assert lost(cuts, read_value) > 0


def test_a_rename_without_a_sync_of_the_folder_is_caught() -> None:
    cuts = run_and_cut(lambda files, acknowledge: replace_file(files, acknowledge, sync_folder=False))
    assert lost(cuts, read_value) > 0


# What a power cut may leave


def disk_with(content: bytes) -> tuple[SimulatedDisk, SimulatedFiles]:
    disk = SimulatedDisk()
    files = SimulatedFiles(disk)
    files.write_atomic(JOURNAL, content)
    return disk, files


def contents_after_cuts(disk: SimulatedDisk) -> set[bytes]:
    image = disk.image()
    return {SimulatedFiles(image.after_power_cut(seed)).read_bytes(JOURNAL) for seed in range(300)}


def test_any_sector_of_a_write_may_be_lost() -> None:
    disk, files = disk_with(b"old" * 512)
    files.open_write(JOURNAL).write_at(0, b"new" * 512)
    contents = contents_after_cuts(disk)
    assert {b"old" * 512, b"new" * 512} < contents
    sectors = {(content[0], content[600], content[1_100]) for content in contents if len(content) == 1536}
    assert len(sectors) == 8


def test_a_file_may_have_got_longer_without_its_data() -> None:
    disk, files = disk_with(b"old")
    files.open_write(JOURNAL).write_at(3, b"new" * 700)
    contents = contents_after_cuts(disk)
    assert all(content[:3] == b"old" for content in contents)
    assert any(len(content) > 1_000 and b"new" not in content for content in contents)
    assert any(b"new" in content[500:] and b"new" not in content[:500] for content in contents)


def test_a_truncation_may_be_lost() -> None:
    disk, files = disk_with(b"old and long")
    files.open_write(JOURNAL).truncate(3)
    assert {b"old", b"old and long"} <= contents_after_cuts(disk)


def test_a_renamed_file_is_found_under_its_old_name_its_new_name_or_both() -> None:
    disk, files = disk_with(b"old")
    with files.create(JOURNAL + "2") as file:
        file.write_at(0, b"new")
        file.sync()
    files.sync_folder(ROOT)
    files.rename(JOURNAL + "2", JOURNAL)
    found = set()
    for seed in range(40):
        after = SimulatedFiles(disk.image().after_power_cut(seed))
        found.add(tuple((name, after.read_bytes(f"{ROOT}/{name}")) for name in after.listdir(ROOT)))
    assert found == {
        (("journal", b"old"), ("journal2", b"new")),
        (("journal", b"new"),),
        (("journal", b"new"), ("journal2", b"new")),
    }


def test_each_new_and_each_removed_name_may_be_lost_by_itself() -> None:
    disk, files = disk_with(b"")
    files.create(f"{ROOT}/a").close()
    files.create(f"{ROOT}/b").close()
    files.remove(JOURNAL)
    found = {tuple(SimulatedFiles(disk.image().after_power_cut(seed)).listdir(ROOT)) for seed in range(100)}
    assert len(found) == 8


def test_a_kill_loses_nothing_and_an_image_does_not_change() -> None:
    disk, files = disk_with(b"old")
    files.open_write(JOURNAL).write_at(0, b"new")
    image = disk.image()
    files.open_write(JOURNAL).write_at(0, b"NEW")
    files.remove(JOURNAL)
    assert SimulatedFiles(image.after_kill()).read_bytes(JOURNAL) == b"new"


def test_what_a_killed_process_has_not_synced_can_still_be_lost() -> None:
    disk, files = disk_with(b"old")
    files.open_write(JOURNAL).write_at(0, b"new")
    files.mkdir(f"{ROOT}/folder")
    files.write_atomic(f"{ROOT}/folder/file", b"synced")
    after = SimulatedFiles(disk.image().after_kill())
    assert after.read_bytes(f"{ROOT}/folder/file") == b"synced"
    cut = SimulatedFiles(after.disk.image().after_power_cut(0, "everything"))
    assert cut.read_bytes(JOURNAL) == b"old"
    assert cut.listdir(ROOT) == ["journal"]
    after.open_write(JOURNAL).sync()
    after.sync_folder(ROOT)
    cut = SimulatedFiles(after.disk.image().after_power_cut(0, "everything"))
    assert cut.read_bytes(JOURNAL) == b"new"
    assert cut.read_bytes(f"{ROOT}/folder/file") == b"synced"


@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_seed_leaves_the_same_disk(loss: Loss) -> None:
    disk, files = disk_with(b"old" * 1_000)
    files.open_write(JOURNAL).write_at(5, b"new" * 900)
    files.open_write(JOURNAL).truncate(2_000)
    image = disk.image()
    for seed in range(5):
        one, other = (SimulatedFiles(image.after_power_cut(seed, loss)).read_bytes(JOURNAL) for _ in range(2))
        assert one == other


# Faults


def test_after_a_failed_sync_a_second_one_succeeds_and_the_data_is_still_not_durable() -> None:
    disk, files = disk_with(b"old" * 1_000)
    file = files.open_write(JOURNAL)
    file.write_at(0, b"new" * 1_000)
    disk.lose_unsynced(disk.file(JOURNAL), seed=1)
    file.sync()
    assert file.read_at(0, 3_000) == b"new" * 1_000
    assert b"old" in SimulatedFiles(disk.image().after_power_cut(0)).read_bytes(JOURNAL)


def test_a_full_disk_writes_what_fits_and_fails() -> None:
    disk, files = disk_with(b"1234")
    disk.capacity_bytes = 10
    file = files.open_write(JOURNAL)
    with pytest.raises(OSError, match="No space left"):
        file.write_at(4, b"56789abc")
    assert file.read_at(0, 100) == b"123456789a"
    with pytest.raises(OSError, match="No space left"):
        file.allocate(11)
    file.truncate(2)
    file.write_at(0, b"abc")


def test_a_read_only_disk_refuses_every_change() -> None:
    disk, files = disk_with(b"old")
    disk.read_only = True
    for change in (
        lambda: files.open_write(JOURNAL).write_at(0, b"new"),
        lambda: files.create(JOURNAL + "2"),
        lambda: files.rename(JOURNAL, JOURNAL + "2"),
        lambda: files.remove(JOURNAL),
    ):
        with pytest.raises(OSError, match="Read-only"):
            change()
    assert files.read_bytes(JOURNAL) == b"old"


def test_a_test_may_let_one_call_fail_or_cut_it_short() -> None:
    _, inner = disk_with(b"")
    files = InterceptedFiles(inner, ROOT)
    verbs: list[str] = []

    def fail_in_the_second_write(call: Call) -> None:
        verbs.append(call.verb)
        if call.number == 2:
            call.write_part(3)
            raise OSError(28, "No space left on device")

    files.before = fail_in_the_second_write
    file = files.open_write(JOURNAL)
    file.write_at(0, b"one")
    with pytest.raises(OSError, match="No space"):
        file.write_at(3, b"second")
    file.sync()
    assert files.read_bytes(JOURNAL) == b"onesec"
    assert verbs == ["write", "write", "sync"]


def test_a_killed_process_leaves_its_gate_to_the_one_that_waits() -> None:
    disk = SimulatedDisk()
    killed, other = SimulatedFiles(disk), SimulatedFiles(disk)
    gate = killed.gate(f"{ROOT}/gate", 30, guarded=ROOT).__enter__()
    entered = threading.Event()

    def wait_for_it() -> None:
        with other.gate(f"{ROOT}/gate", 30, guarded=ROOT):
            entered.set()

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    assert not entered.wait(0.05)
    killed.kill()
    thread.join(30)
    assert entered.is_set()
    with pytest.raises(OSError, match="Bad file descriptor"):
        gate.try_lock()
