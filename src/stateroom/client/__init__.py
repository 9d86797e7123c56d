"""The client of a Stateroom server: the same calls with and without an event loop. Needs the `client` extra (httpx2).

    async with AsyncClient("http://127.0.0.1:8700") as room:
        async for event in room.stream("I need black running shoes"):
            print(event.type)

Whatever cuts a connection is mended inside: the same key, the last cursor, until the run has ended or patience is over.
"""

from stateroom.client.clients import AsyncClient, Client
from stateroom.client.desks import AsyncDesk, Desk
from stateroom.client.model import Event, Reply

__all__ = ["AsyncClient", "AsyncDesk", "Client", "Desk", "Event", "Reply"]
