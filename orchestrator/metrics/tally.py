"""Numbers that only grow, in a file for each process of the machine: they go on over restarts and survive kill -9.

The files are prometheus-client's own (mmap: what was counted is the kernel's, whatever becomes of the process), but
without its multi-process mode: that is switched on by a variable which the library reads from the environment on
import, names files by process id and keeps them for ever. Here a process takes the first file that nobody has locked,
so there are as many as processes ever ran at a time, and whoever is started next goes on where the last one ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

from deduplication.private_files import PRIVATE, make_private

log = logging.getLogger(__name__)

MOST_SLOTS = 1024
BEAT = "beat"  # when the process last said that it lives: a time, and no number to be summed
_DAMAGED = (RuntimeError, ValueError, struct.error)  # the last one includes a file that is only just being made


class Tally:
    """Threads count together. Without a file, the numbers are this process's alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, float] = {}
        self._file: MmapedDict | None = None
        if path:
            self._file = MmapedDict(str(path))  # type: ignore[no-untyped-call]
            self._numbers = {key: value for key, value, _ in self._file.read_all_values()}  # type: ignore[no-untyped-call]

    def add(self, key: str, amount: float = 1) -> None:
        with self._lock:
            self._put(key, self._numbers.get(key, 0.0) + amount)

    def observe(self, bucket: str, sum_key: str, seconds: float) -> None:
        """One more in the bucket of a histogram, and what it took."""
        with self._lock:
            self._put(bucket, self._numbers.get(bucket, 0.0) + 1)
            self._put(sum_key, self._numbers.get(sum_key, 0.0) + seconds)

    def put(self, key: str, number: float) -> None:
        with self._lock:
            self._put(key, number)

    def read(self) -> dict[str, float]:
        with self._lock:
            return dict(self._numbers)

    def close(self) -> None:
        """What is counted after this is counted nowhere."""
        with self._lock:
            file, self._file = self._file, None
            if file:
                file.close()  # type: ignore[no-untyped-call]

    def _put(self, key: str, number: float) -> None:
        self._numbers[key] = number
        if self._file:
            self._file.write_value(key, number, 0.0)  # type: ignore[no-untyped-call]


class Slot:
    """A file that this process has to itself, for as long as it lives: the kernel frees the lock of one that dies."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(MOST_SLOTS):
            path = folder / f"{kind}-{number}.db"
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._fd)
                continue
            make_private(path)
            self.path = path
            self._begin_anew_if_damaged()
            self.tally = Tally(path)
            return
        raise OSError(f"{folder}: all {MOST_SLOTS} files are in use")

    def _begin_anew_if_damaged(self) -> None:
        """As a power cut may leave it; kill -9 does not."""
        try:
            if os.fstat(self._fd).st_size:
                _read(self.path)
        except _DAMAGED as error:
            log.warning("%s is damaged (%s): its numbers begin anew", self.path, error)
            os.ftruncate(self._fd, 0)

    def close(self) -> None:
        self.tally.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def open_tally(folder: Path, kind: str) -> Slot | None:
    """None where the folder cannot be written: the service goes on, and counts for itself alone."""
    try:
        return Slot(folder, kind)
    except OSError as error:
        log.error("WARNING: %s cannot be written (%s): each process counts alone", folder, error)
        return None


def read_slots(folder: Path) -> dict[str, dict[str, float]]:
    """The numbers of each process that ever counted here, by the name of its slot."""
    found = {}
    for path in sorted(folder.glob("*.db")):
        with suppress(OSError, *_DAMAGED):
            found[path.stem] = _read(path)
    return found


def _read(path: Path) -> dict[str, float]:
    values = MmapedDict.read_all_values_from_file(str(path))  # type: ignore[no-untyped-call]
    return {key: value for key, value, _, _ in values}


def sum_slots(folder: Path) -> Counter[str]:
    sums: Counter[str] = Counter()
    for numbers in read_slots(folder).values():
        for key, number in numbers.items():
            if key != BEAT:
                sums[key] += number  # type: ignore[assignment]  # seconds are no whole numbers
    return sums
