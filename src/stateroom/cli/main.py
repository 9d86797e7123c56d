"""`stateroom …`: the table of commands, and what their errors look like.

Exit codes: 0 it worked; 1 it failed (or what was checked is not as it should be); 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stateroom import __version__
from stateroom.cli import conversation, doctor, migrate, replay, run, serve, session
from stateroom.cli.extra import loop_factory
from stateroom.cli.terminal import FAILED, OK, USAGE, complain, hint_of
from stateroom.errors import StateroomError

COMMANDS = (serve, replay, conversation, session, run, migrate, doctor)

_DESCRIPTION = "The state layer for AI agents: conversations, sessions, runs and connections, each in its own room."
_EPILOG = """examples:
  stateroom serve                       start a server on http://127.0.0.1:8700
  stateroom replay sample               play recorded conversations through the whole stack and compare
  stateroom conversation list           what was said
  stateroom doctor                      what is wrong with a store, and what to do

exit codes: 0 it worked; 1 it failed; 2 the command line is wrong"""


class Parser(argparse.ArgumentParser):
    """argparse with our form of an error: one line, and what to do."""

    def error(self, message: str) -> NoReturn:
        complain(message, "usage", f"See '{self.prog} --help'.")
        sys.exit(USAGE)


def parser() -> Parser:
    """Every command with its options."""
    top = Parser(prog="stateroom", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"stateroom {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = sys.argv[1:] if argv is None else argv
    return run_command(parser().parse_args(given, argparse.Namespace(argv=given)))


def run_command(args: argparse.Namespace) -> int:
    """What a command line says, its errors told; returns the exit code."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code: int = runner.run(args.command(args))
        sys.stdout.flush()
        return code
    except StateroomError as error:
        complain(error.message, error.reason, hint_of(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        complain(f"{error.strerror or error}{place}", "os_error")
    except KeyboardInterrupt:
        complain("Interrupted.", "interrupted")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
