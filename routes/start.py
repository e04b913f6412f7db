"""The entry point of the command mailonce."""

import gc


def main() -> None:
    """Modules are never garbage: looking for it while they load was a third of the time to start."""
    gc.disable()
    from routes.command_line import main as run_command

    gc.freeze()
    gc.enable()
    run_command()
