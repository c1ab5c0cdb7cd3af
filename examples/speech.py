"""A batch of texts to speak, by pull: no worker and no handler, only a loop that asks for work.

    python examples/speech.py

Run the script again, or twice at once in another terminal with the same folder, and every text is still spoken once.
The voice is a stand-in for a real synthesiser: one beep per letter, written with the standard library.

    python examples/speech.py FOLDER
"""

import math
import sys
import tempfile
import wave
from array import array
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Lease, content_id

RATE = 8_000
TEXTS = ("Mind the gap.", "The next train is late.", "Platform two.", "", "Mind the gap.")

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="speech-"))
jobs = App(f"sqlite:///{folder}/speech.db")


@dataclass(frozen=True)
class Speech:
    text: str
    voice: str = "beep"


texts = jobs.queue("speech", Speech)


class VoiceIsBusy(Exception):
    """The synthesiser has no room just now."""


def synthesise(text: str, target: Path) -> float:
    """One beep of a twentieth of a second per character; answers the length in seconds."""
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


def speak(lease: Lease[Speech]) -> None:
    """One piece of work. What it raises lets the job be tried again; what it says to the lease is final."""
    text = lease.payload.text
    if not text:
        lease.give_up("there is nothing to say")
    elif "late" in text and lease.attempt == 1:
        lease.retry(VoiceIsBusy("try again"), delay=0)
    else:
        lease.complete(synthesise(text, folder / f"{lease.job.id}.wav"))


def main() -> None:
    with jobs:
        handles = [texts.enqueue(Speech(text), id=content_id(text)) for text in TEXTS]
        print(f"{len(handles)} texts, {sum(handle.created for handle in handles)} new jobs")
        for lease in texts.leases(batch=5, until_empty=True):
            with lease:
                speak(lease)
        for handle in dict.fromkeys(handle.id for handle in handles):
            report = jobs.control.report(handle, queue="speech")
            (text,), _ = report.job.arguments or ([{}], {})
            print(f"{report.outcome}, {report.job.attempt} attempts: {text['text']!r}")
        spoken = sorted(folder.glob("*.wav"))
        print(f"{len(spoken)} files, {sum(file.stat().st_size for file in spoken)} bytes")


if __name__ == "__main__":
    main()
