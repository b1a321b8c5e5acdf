"""The command line, a thin layer over the workflows."""

import os
import shlex
import sys
import traceback
from dataclasses import fields
from typing import Any

import tyro

from phenogroups.cli.commands import Command, Compare, Demo, Discover, code_of, stopped_by_sigterm
from phenogroups.cli.options import parse_settings
from phenogroups.cli.progress import ERR, LOG, detail, note, say, training_bar

__all__ = ["main", "parse_settings", "say", "training_bar"]

EPOCHS_ARE_KEPT = "Finished epochs are kept: the same command with --resume goes on."


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error that the user can mend is one message, not a traceback."""
    # threads that sleep between operations instead of spinning: several times faster where cores are shared, and read
    # only once, when torch is first imported
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
            say_settings(words)
        raise
    LOG.lines, LOG.verbose, LOG.has_begun = [], getattr(command, "verbose", False), False
    LOG.command = shlex.join(["phenogroups", *words])
    if os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes one speaks
        note(f"phenogroups {type(command).__name__.lower()}: starting")
    try:
        with stopped_by_sigterm():
            return command.run() or 0
    except (ValueError, FloatingPointError, OSError) as error:
        is_first = not ERR.quiet
        who, ERR.quiet = "phenogroups" if is_first else "phenogroups, another process", False
        by_the_disk = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        kept = f" {EPOCHS_ARE_KEPT}" if by_the_disk and has_epochs(command) else ""
        note(f"{who}: {error}{kept}")
        detail(traceback.format_exc())
        if is_first:
            keep_log(command, error)
        return 2
    except KeyboardInterrupt as stop:
        kept = "nothing was written"
        if getattr(command, "cache", None):
            kept += ", but what was decoded: the same command goes on"
        note(f"phenogroups: stopped; {EPOCHS_ARE_KEPT if has_epochs(command) else f'{kept}.'}")
        if has_epochs(command) and not ERR.quiet:
            keep_log(command, stop)
        return code_of(stop)
    except Exception as fault:  # of the program, or memory ran out
        detail(traceback.format_exc())
        if not ERR.quiet:
            keep_log(command, fault)
        raise


def keep_log(command: Any, why: BaseException) -> None:
    """Keep the log of a run that has begun and did not end; a mistake that is said before training leaves no file."""
    if not LOG.has_begun or not isinstance(command, Demo | Discover):
        return
    from phenogroups.data.cohort import CohortError

    if not isinstance(why, CohortError):
        LOG.write_beside(command.out)


def say_settings(arguments: list[str]) -> None:
    """Say of wrong options that are settings of a method how settings are given."""
    command = {"discover": Discover, "compare": Compare}.get(next(iter(arguments), ""))
    if command is None:
        return
    words = {word[2:].partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")}
    strange = words - {option.name for option in fields(command)}
    if not strange:  # an import now takes seconds
        return
    from phenogroups.methods import METHODS

    known = {name for method in METHODS.values() for name in method().setting_names()}
    for name in sorted(strange & known):
        note(f"phenogroups: {name} is a setting of a method. Give it as --set {name}=VALUE.")


def has_epochs(command: Any) -> bool:
    """Whether an interrupted command left epochs to resume from."""
    if "phenogroups.training.checkpoint" not in sys.modules:  # nothing was trained, and an import now takes seconds
        return False
    from phenogroups.training.checkpoint import is_kept

    return hasattr(command, "resume") and is_kept(command.out)
