"""One worker of `stateroom serve --workers`: `python -m stateroom.cli.worker FD FD serve …`. No command of its own.

The descriptors are the socket to take connections from and the line to the parent.
"""

from __future__ import annotations

import functools
import socket
import sys

from stateroom.cli.main import parser, run_command
from stateroom.cli.serve import work


def main() -> int:
    """The same command line as the parent's, answered on the parent's socket."""
    listening, parent, *argv = sys.argv[1:]
    args = parser().parse_args(argv)
    args.command = functools.partial(work, listening=inherited(listening), parent=inherited(parent))
    return run_command(args)


def inherited(fd: str) -> socket.socket:
    """The parent's socket; what agents start does not get it too."""
    found = socket.socket(fileno=int(fd))
    found.set_inheritable(False)
    return found


if __name__ == "__main__":
    sys.exit(main())
