"""A batch of texts to speak, with pull: no worker and no handler, only a loop that claims jobs.

    python examples/speech.py [FOLDER]

With a folder you can run it again, or in two terminals at once: they share the jobs, and finished texts are not spoken
again. The voice replaces a real synthesiser: one beep per letter, written with the standard library.
"""

import math
import sys
import tempfile
import wave
from array import array
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, content_id

RATE = 8_000
TEXTS = ("Mind the gap.", "The next train is late.", "Platform two.", "", "Mind the gap.")

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="speech-"))
jobs = App(f"sqlite:///{folder}/speech.db")


@dataclass(frozen=True)
class Speech:
    text: str
    voice: str = "beep"


texts = jobs.queue("speech", Speech)


def synthesise(text: str, target: Path) -> float:
    """Write a beep of 0.05 seconds per character; return the length in seconds."""
    samples = array("h")
    for letter in text:
        pitch = 200 + 10 * (ord(letter) % 32)
        samples.extend(int(8_000 * math.sin(2 * math.pi * pitch * n / RATE)) for n in range(RATE // 20))
    if sys.byteorder == "big":
        samples.byteswap()
    with wave.open(str(target), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return len(samples) / RATE


def main() -> None:
    with jobs:
        handles = [texts.enqueue(Speech(text), id=content_id(text)) for text in TEXTS]
        print(f"{len(handles)} texts, {sum(handle.created for handle in handles)} new jobs")

        for lease in texts.leases(batch=5, until_empty=True):
            with lease:  # if this block raises, the job is retried
                text = lease.payload.text
                if not text:
                    lease.give_up("there is nothing to say")
                elif "late" in text and lease.attempt == 1:
                    lease.retry("the voice is busy", delay=0)
                else:
                    lease.complete(synthesise(text, folder / f"{lease.job.id}.wav"))

        for job_id, text in {handle.id: text for handle, text in zip(handles, TEXTS, strict=True)}.items():
            job = jobs.control.get(job_id, queue="speech")
            print(f"{text!r}: {job.state} on attempt {job.attempt}")
        spoken = sorted(folder.glob("*.wav"))
        print(f"{len(spoken)} files, {sum(file.stat().st_size for file in spoken)} bytes")


if __name__ == "__main__":
    main()

# It prints:
#   5 texts, 4 new jobs
#   'Mind the gap.': succeeded on attempt 1
#   'The next train is late.': succeeded on attempt 2
#   'Platform two.': succeeded on attempt 1
#   '': failed on attempt 1
#   3 files, 39332 bytes
