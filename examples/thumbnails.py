"""Thumbnails with request and response: the first request runs a job, the second gets the stored result.

    python examples/thumbnails.py

The caller and the worker share only a SQLite file. Here both are threads of one process; on a web site the caller is a
view and the worker is another process. The images are PPM files, because they need no image library.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, GiveUp, JobFailed, content_id

folder = Path(tempfile.mkdtemp(prefix="thumbnails-"))
jobs = App(f"sqlite:///{folder}/jobs.db")


@dataclass(frozen=True)
class Thumbnail:
    """The result: small. The pixels stay in their file."""

    path: str
    width: int
    height: int


@jobs.task(max_attempts=3, backoff=0.1, result_ttl=3600)
def shrink(source: str, width: int) -> Thumbnail:
    """Take every n-th pixel of every n-th row."""
    image = Path(source)
    if not image.exists():
        raise GiveUp(f"there is no {image.name}")  # a retry would not help
    header, pixels = image.read_bytes().split(b"\n255\n", 1)
    columns, rows = map(int, header.split()[1:])
    step = columns // width
    small = b"".join(
        pixels[3 * (row * columns + column) :][:3]
        for row in range(0, rows, step)
        for column in range(0, step * width, step)
    )
    height = len(small) // 3 // width
    target = image.with_name(f"{image.stem}-{width}.ppm")
    target.write_bytes(b"P6\n%d %d\n255\n" % (width, height) + small)
    return Thumbnail(str(target), width, height)


def thumbnail(source: Path, width: int) -> Thumbnail:
    """Called by a view. The id is made from the arguments: equal requests are one job."""
    arguments = {"image": str(source), "width": width}
    return shrink.using(id=content_id(arguments), wait=20).request(str(source), width)


def main() -> None:
    cat = folder / "cat.ppm"
    cat.write_bytes(b"P6\n640 480\n255\n" + bytes(range(256)) * (640 * 480 * 3 // 256))

    with jobs, jobs.worker(concurrency=4):
        first = thumbnail(cat, 64)
        again = thumbnail(cat, 64)  # the stored result; nothing runs
        print(f"{Path(first.path).name} {first.width}x{first.height}, {Path(first.path).stat().st_size} bytes")
        print(f"the same: {first == again}, runs: {jobs.control.status('default').succeeded}")
        try:
            thumbnail(folder / "dog.ppm", 64)
        except JobFailed as failed:
            print(f"no thumbnail: {failed.reason} after {failed.attempts} attempt")


if __name__ == "__main__":
    main()

# It prints:
#   cat-64.ppm 64x48, 9229 bytes
#   the same: True, runs: 1
#   no thumbnail: gave_up after 1 attempt
