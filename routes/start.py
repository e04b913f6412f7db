"""Where the command mailonce begins."""

from __future__ import annotations

import gc


def main() -> None:
    """What is loaded stays to the end: looking through it for garbage meanwhile was a third of the time to start."""
    gc.disable()
    from routes.command_line import main as run_command

    gc.freeze()
    gc.enable()
    run_command()
