"""`stateroom serve`: the server over a store, with the agents the command line names."""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from stateroom.cli.extra import load
from stateroom.cli.place import add_place, is_shared, url_of
from stateroom.cli.terminal import OK, count
from stateroom.errors import InvalidInput, Unavailable
from stateroom.face import AgentLike, agent_of
from stateroom.flows.agent import Agent
from stateroom.hosting.clerk import Clerk
from stateroom.hosting.tape import Tape, TapeAgent

WORKER = (sys.executable, "-m", "stateroom.cli.worker")
_EPILOG = """examples:
  stateroom serve                                          the built-in shop assistant answers
  stateroom serve --workers 4                              in four processes, on one store and one port
  stateroom serve --store postgresql://stateroom_app@db.example/app    after 'stateroom migrate'
  stateroom serve --agent my_shop.agents:answer            your own async function answers
  stateroom serve --model-url http://127.0.0.1:11434/v1 --model llama3 --model-wire chat
  stateroom serve --tape transcripts.jsonl.gz              recorded conversations answer (for 'stateroom replay')

The key for --model-url is read from STATEROOM_MODEL_KEY."""


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve", help="start the server", description="Start the server over a store, and say how to try it.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default %(default)s)")
    parser.add_argument("--port", type=int, default=8700, help="0 takes a free one (default %(default)s)")
    parser.add_argument(
        "--workers", type=count, default=1, metavar="N", help="processes that share the store (default %(default)s)"
    )
    parser.add_argument("--tokens", metavar="FILE", type=Path, help="bearer tokens with their tenants and principals, as JSON")
    add_place(parser)
    agents = parser.add_argument_group("who answers (the first one named is the default)")
    agents.add_argument(
        "--agent", metavar="NAME", action="append", default=[], help="'clerk', or a function as package.module:name"
    )
    agents.add_argument("--model-url", metavar="URL", help="an OpenAI-compatible endpoint, with its /v1")
    agents.add_argument("--model", metavar="NAME", help="the model to ask there; also the agent's name")
    agents.add_argument(
        "--model-wire", choices=("responses", "chat"), default="responses", help="what it speaks (default %(default)s)"
    )
    agents.add_argument("--tape", metavar="FILE", type=Path, help="recorded conversations, plain or gzipped JSON lines")
    agents.add_argument("--tape-delay-ms", metavar="MS", type=int, default=0, help="how long the tape takes for each event")
    agents.add_argument("--tape-chars", metavar="N", type=int, default=0, help="messages come in pieces of this many characters")
    parser.set_defaults(command=_run)


async def _run(args: argparse.Namespace) -> int:
    if args.workers > 1:
        return await _with_workers(args)
    agents = agents_of(args)
    server = load("stateroom.server.run")
    check_port(args.host, args.port)
    await server.serve(url_of(args), agents, host=args.host, port=args.port, tokens=args.tokens)
    return OK


async def _with_workers(args: argparse.Namespace) -> int:
    if not is_shared(url_of(args)):
        message = "Several workers need a store that they can share: sqlite or postgresql."
        raise InvalidInput(message, code="store_not_shared", param="workers")
    server, workers = load("stateroom.server.run"), load("stateroom.server.workers")
    server.known_tokens(args.tokens, args.host)
    with workers.listen(args.host, args.port) as listening:
        parent = workers.Workers(WORKER, args.argv, listening=listening, count=args.workers)
        status: int = await parent.run(server.greet)
        return status


async def work(args: argparse.Namespace, *, listening: socket.socket, parent: socket.socket) -> int:
    """Be one of the workers: the same store and agents, the parent's socket."""
    agents, workers = agents_of(args), load("stateroom.server.workers")
    await workers.work(url_of(args), agents, listening=listening, parent=parent, tokens=args.tokens)
    return OK


def agents_of(args: argparse.Namespace) -> list[Agent]:
    """The agents that a command line names, in the order of its help; the clerk when it names none."""
    agents: list[Agent] = [_named(name) for name in args.agent]
    if args.model_url:
        if not args.model:
            raise InvalidInput("--model-url needs --model NAME.", code="model_missing", param="model")
        key = os.environ.get("STATEROOM_MODEL_KEY")
        model = load("stateroom.hosting.model")
        agents.append(model.ModelAgent(args.model, args.model_url, model=args.model, api_key=key, wire=args.model_wire))
    if args.tape:
        tape = Tape.load(args.tape)
        agents.append(TapeAgent(tape, delay_ms=args.tape_delay_ms, stream_chars=args.tape_chars))
    return agents or [Clerk()]


def _named(name: str) -> Agent:
    if name == "clerk":
        return Clerk()
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidInput(f"There is no built-in agent {name!r}.", code="agent_unknown", param="agent")
    sys.path.insert(0, "")  # what lies in the present folder can be named, as with python -m
    try:
        found: AgentLike = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name!r} cannot be loaded: {error}.", code="agent_unknown", param="agent") from error
    return agent_of(found)


def check_port(host: str, port: int) -> None:
    """Unavailable (`port_taken`) when somebody listens there already: said before anything is opened."""
    if not 0 <= port <= 65_535:
        raise InvalidInput(f"A port lies between 0 and 65535, not {port}.", code="port_invalid", param="port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Unavailable(
                f"{host}:{port} cannot be listened on: {error.strerror}.", code="port_taken", param="port"
            ) from error
