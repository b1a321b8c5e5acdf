"""The command line, a thin layer over the workflows. Heavy modules are imported only when a command needs them."""

import os
import shlex
import sys
import traceback
from dataclasses import fields
from typing import Any

import tyro

from phenogroups.cli.compare import Compare
from phenogroups.cli.discover import Demo, Discover
from phenogroups.cli.inspect import Check, Methods, Open, Predict, Report
from phenogroups.cli.options import parse_settings
from phenogroups.cli.progress import ERR, LOG, detail, note, say, training_bar
from phenogroups.cli.stopping import exit_code, stopped_by_sigterm
from phenogroups.training.memory import keep_memory

__all__ = ["main", "parse_settings", "say", "training_bar"]

Command = Demo | Discover | Compare | Predict | Report | Open | Check | Methods
EPOCHS_ARE_KEPT = "Finished epochs are kept: the same command with --resume goes on."


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error that the user can correct is one message, not a traceback."""
    # threads sleep between operations instead of spinning, which is several times faster where cores are shared; the
    # variable is read once, when torch is first imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:
        from phenogroups import __version__

        print(f"phenogroups {__version__}")
        return 0
    try:
        command: Any = tyro.cli(
            Command,  # pyright: ignore[reportArgumentType]
            args=arguments,
            prog="phenogroups",
            description="Find disease subgroups by contrasting patients with healthy controls. Version: --version.",
        )
    except SystemExit as wrong:
        if wrong.code:
            explain_settings(words)
        raise
    LOG.lines, LOG.verbose, LOG.has_begun = [], getattr(command, "verbose", False), False
    LOG.command = shlex.join(["phenogroups", *words])
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only the first of several processes prints
        note(f"phenogroups {type(command).__name__.lower()}: starting")
    if isinstance(command, Demo | Discover | Compare):  # commands that train
        keep_memory()
    try:
        with stopped_by_sigterm():
            return command.run() or 0
    except (ValueError, FloatingPointError, OSError) as error:
        is_first = not ERR.quiet
        name, ERR.quiet = "phenogroups" if is_first else "phenogroups, another process", False
        is_of_disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        note(f"{name}: {error}" + (f" {EPOCHS_ARE_KEPT}" if is_of_disk and has_epochs(command) else ""))
        detail(traceback.format_exc())
        if is_first:
            keep_log(command, error)
        return 2
    except KeyboardInterrupt as stop:
        kept = "nothing was written"
        if getattr(command, "cache", None):
            kept += " except decoded images, from which the same command continues"
        note(f"phenogroups: stopped; {EPOCHS_ARE_KEPT if has_epochs(command) else f'{kept}.'}")
        if has_epochs(command) and not ERR.quiet:
            keep_log(command, stop)
        return exit_code(stop)
    except Exception as fault:  # an error in this program, or memory ran out
        detail(traceback.format_exc())
        if not ERR.quiet:
            keep_log(command, fault)
        raise


def keep_log(command: Any, why: BaseException) -> None:
    """Keep the log of a run that began and did not end; an error before training leaves no file."""
    if not LOG.has_begun or not isinstance(command, Demo | Discover):
        return
    from phenogroups.data.cohort import CohortError

    if not isinstance(why, CohortError):
        LOG.write_beside(command.out)


def explain_settings(arguments: list[str]) -> None:
    """Explain how settings are given if unknown options are settings of a method."""
    command = {"discover": Discover, "compare": Compare}.get(next(iter(arguments), ""))
    if command is None:
        return
    words = {word[2:].partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")}
    unknown = words - {option.name for option in fields(command)}
    if not unknown:  # the import below takes seconds
        return
    from phenogroups.methods import METHODS

    known = {name for method in METHODS.values() for name in method().setting_names()}
    for name in sorted(unknown & known):
        note(f"phenogroups: {name} is a setting of a method. Give it as --set {name}=VALUE.")


def has_epochs(command: Any) -> bool:
    """Whether an interrupted command left epochs to resume from."""
    if "phenogroups.training.checkpoint" not in sys.modules:  # nothing was trained, and the import takes seconds
        return False
    from phenogroups.training.checkpoint import is_kept

    return hasattr(command, "resume") and is_kept(command.out)
