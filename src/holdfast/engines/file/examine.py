"""What `holdfast doctor` checks in the folder of a file store. Reads only, and takes no lock."""

from collections.abc import Iterator

from holdfast.engines.disk_checks import (
    check_disk_space,
    check_file_system,
    check_permissions,
    existing_folder,
    readable,
)
from holdfast.engines.file.folder_checks import check_folder, check_platform
from holdfast.engines.file.marks import FILE_BYTES, parse_mark
from holdfast.engines.file.store_folder import FORMAT, StoreFolder, parse_format
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.model.findings import ADDRESS, DAMAGE, DURABILITY, PERMISSIONS, SCHEMA, Finding, Report
from holdfast.runtime import Runtime

SET_ASIDE = (".torn", ".damaged")


def examine_folder(
    folder: StoreFolder,
    durability: str,
    sync_interval_s: float,
    runtime: Runtime,
    report: Report,
    *,
    is_relative: bool,
    allow_network_disk: bool,
) -> None:
    """Blocks the calling thread. Raises an error of the package if the folder cannot be read."""
    check_platform()
    report(_durability(durability, sync_interval_s))
    if is_relative:
        report(
            ADDRESS.note(
                f"The address is relative to the current folder, and means {folder.root} here. A process that is "
                "started in another folder uses another store.",
                f"Write the whole path: file://{folder.root}",
            )
        )
    with readable(folder.path):
        _examine_files(folder, runtime, report, allow_network_disk=allow_network_disk)


def _examine_files(folder: StoreFolder, runtime: Runtime, report: Report, *, allow_network_disk: bool) -> None:
    disk = existing_folder(folder.path)
    report(check_file_system(disk, runtime, network_allowed=allow_network_disk))
    try:
        for each in (folder.root, folder.path):
            check_folder(each, runtime)
    except ConfigError as error:
        report(PERMISSIONS.problem(str(error), "A worker refuses such a folder."))
        return
    for finding in check_permissions(disk, [], runtime):
        report(finding)
    report(check_disk_space(disk, folder.reserve_path, runtime))
    if not runtime.fs.exists(folder.format_path):
        raise EngineUnavailable(
            f"There is no store at {folder.path}: none was made yet, or its folder was moved or removed. The first "
            "enqueue or worker makes one.",
            engine="file",
        )
    for finding in (_schema(folder, runtime), *_damage(folder, runtime)):
        report(finding)


def _durability(durability: str, sync_interval_s: float) -> Finding:
    match durability:
        case "durable":
            return DURABILITY.ok(
                "durable: every job is synced before it is acknowledged, and survives a loss of power."
            )
        case "fast":
            return DURABILITY.note(
                f"fast: the journal is synced every {sync_interval_s:g} s. A loss of power may take back what was "
                "acknowledged since.",
                "Set durability = durable if no acknowledged job may be lost.",
            )
        case _:
            return DURABILITY.warning(
                "none: nothing is synced. A loss of power may take back any number of acknowledged jobs.",
                "Set durability = durable or fast, unless the jobs may be lost.",
            )


def _schema(folder: StoreFolder, runtime: Runtime) -> Finding:
    found = parse_format(runtime.fs.read_bytes(folder.format_path))
    if found is None:
        return SCHEMA.problem(
            f"{folder.format_path} is damaged, so the format of the store is not known.",
            "Run: holdfast file inspect. The guide on files says how to restore the file.",
        )
    if found.number != FORMAT:
        return SCHEMA.problem(
            f"The store has format {found.number}, and this release reads format {FORMAT}.", "Upgrade Holdfast."
        )
    return SCHEMA.ok(f"The store has format {FORMAT}.")


def _damage(folder: StoreFolder, runtime: Runtime) -> Iterator[Finding]:
    mark = runtime.fs.read_bytes(folder.mark_path) if runtime.fs.exists(folder.mark_path) else b""
    if parse_mark(mark[:FILE_BYTES]).is_suspect or runtime.fs.exists(folder.suspect_path):
        yield DAMAGE.problem(
            "A sync has failed: the disk may not have what was written. Processes that have the store open refuse to "
            "write.",
            f"Check the disk (dmesg, SMART). {folder.suspect_path} says when it failed. Then stop all processes and "
            "start them again: the first one writes the store anew.",
        )
        return
    aside = [name for name in runtime.fs.listdir(folder.path) if name.endswith(SET_ASIDE)]
    damaged = [name for name in aside if name.endswith(".damaged")]
    if damaged:
        yield DAMAGE.warning(
            f"Changes could not be read once, and the files with them were set aside: {', '.join(damaged)}.",
            "Check the disk. `holdfast file inspect` shows what is readable in them; remove them when you are done.",
        )
    elif aside:
        yield DAMAGE.note(
            f"A loss of power has cut off writes that were not acknowledged: {', '.join(aside)}.",
            "Nothing is lost. The files can be removed.",
        )
    else:
        yield DAMAGE.ok("No sync has failed, and no file was set aside.")
