"""The clerk: a small shop assistant that needs no model and no key, so that a newcomer sees conversation, slots, tool
calls and streaming at work. The same words over the same desk always get the same answer."""

from stateroom.hosting.clerk.agent import Clerk

__all__ = ["Clerk"]
