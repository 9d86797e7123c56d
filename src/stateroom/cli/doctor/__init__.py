"""`stateroom doctor`: what is wrong with a store, and what to do about it. Looks, and changes nothing."""

from stateroom.cli.doctor.command import add

__all__ = ["add"]
