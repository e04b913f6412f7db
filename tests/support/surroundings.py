"""The environment of tests and their processes: the programs of the machine, and nothing of its user."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")  # noqa: S108
ROOM_BYTES = 4 * 1024**3
_KEPT = ("PATH", "TMPDIR", "CI", "TERM", "COLUMNS", "LANG", "LC_ALL")


def clean_environment(**settings: str) -> dict[str, str]:
    """For a process that a test starts, in a folder of its own: ours can be imported, and only ``settings`` are set."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | settings


def output_of(
    command: Sequence[str], folder: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> str:
    """What it prints, in a clean environment unless one is given. It must succeed."""
    env = clean_environment() if env is None else env
    ran = subprocess.run(command, cwd=folder, env=env, input=stdin, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def forget_environment() -> None:
    """For this process: no setting, proxy, home, configuration or ignored Ctrl+C of the user has an effect."""
    for name in set(os.environ) - set(_KEPT):
        if not name.startswith("PYTEST_"):
            del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs, and in all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_files_in_memory() -> None:
    """Thousands of tests make databases of their own, and a disk makes each of them wait.

    Where TMPDIR is set, the files go there; and on the disk where memory has no room, or runs no programs.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return
    if shutil.disk_usage(MEMORY).free > ROOM_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # looked up again
