"""A build that forgets turn keys: what a chaos run must find out."""

from __future__ import annotations

import sys
from typing import Any

from stateroom.cli.main import main
from stateroom.flows.turn import Turns


def no_key(*_: Any) -> None:
    return None


if __name__ == "__main__":
    Turns._key = no_key  # type: ignore[method-assign,assignment]
    sys.exit(main(sys.argv[1:]))
