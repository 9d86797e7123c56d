"""`stateroom replay`: recorded conversations through the whole stack, turn by turn, and back for comparison."""

from stateroom.cli.replay.command import add

__all__ = ["add"]
