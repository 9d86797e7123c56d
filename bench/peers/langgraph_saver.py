"""LangGraph with its SQLite and its PostgreSQL checkpointer: a compiled graph with a messages channel and a state channel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from bench.peers.base import Peer, arguments
from bench.peers.on_postgres import POWER_CUT, InDatabase
from bench.peers.replay import Turn


class State(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]
    state: dict[str, Any]


class LangGraph(Peer):
    """One node returns the whole turn (the best case), or `stepwise`: one step an item, as an agent with tools runs.
    Loads the whole conversation whatever the turn needs."""

    stores = "messages and state, whole, in every checkpoint"
    survives = "power cut; WAL, synchronous=FULL, durability='async' (the default): written beside the next step"

    def __init__(self, folder: Path, *, stepwise: bool = False) -> None:
        super().__init__(folder)
        self.stepwise = stepwise
        self.waiting: dict[str, list[BaseMessage]] = {}

    def store(self) -> AbstractAsyncContextManager[Any]:
        return AsyncSqliteSaver.from_conn_string(str(self.folder / "checkpoints.db"))

    async def open(self) -> None:
        self.context = self.store()
        saver = await self.context.__aenter__()
        await saver.setup()
        graph = StateGraph(State)
        graph.add_node("agent", self.agent)
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", self.onward, ["agent", END])
        self.graph = graph.compile(checkpointer=saver)

    async def agent(self, state: State, config: RunnableConfig) -> dict[str, Any]:
        waiting = self.waiting[config["configurable"]["thread_id"]]
        count = 1 if self.stepwise else len(waiting)
        said, waiting[:] = waiting[:count], waiting[count:]
        return {"messages": said} if said else {}

    async def onward(self, state: State, config: RunnableConfig) -> str:
        return "agent" if self.waiting[config["configurable"]["thread_id"]] else END

    def native(self, turn: Turn, name: str) -> list[BaseMessage]:
        return [message(item, f"{name}-{n}") for n, item in enumerate(turn.items)]

    async def turn(self, conversation: str, turn: Turn) -> None:
        first, *rest = turn.native
        self.waiting[conversation] = rest
        place = {"configurable": {"thread_id": conversation}, "recursion_limit": 10_000}
        await self.graph.ainvoke({"messages": [first], "state": turn.state}, place)

    async def fill(self, conversation: str, turns: Sequence[Turn]) -> None:
        self.waiting[conversation] = []
        values = {"messages": [m for turn in turns for m in turn.native], "state": turns[-1].state}
        await self.graph.aupdate_state({"configurable": {"thread_id": conversation}}, values, as_node="agent")

    async def kept(self, conversation: str) -> int:
        return len((await self.graph.aget_state({"configurable": {"thread_id": conversation}})).values["messages"])

    async def close(self) -> None:
        await self.context.__aexit__(None, None, None)


class LangGraphPostgres(InDatabase, LangGraph):
    survives = f"{POWER_CUT}, durability='async' (the default): written beside the next step"

    def store(self) -> AbstractAsyncContextManager[Any]:
        return AsyncPostgresSaver.from_conn_string(self.database.url())


def message(item: dict[str, Any], id_: str) -> BaseMessage:
    if item["type"] == "message":
        return (HumanMessage if item["role"] == "user" else AIMessage)(content=item["content"], id=id_)
    if item["type"] == "function_call":
        call = {"name": item["name"], "args": arguments(item["arguments"]), "id": item["call_id"]}
        return AIMessage(content="", id=id_, tool_calls=[call])
    return ToolMessage(content=item["output"], tool_call_id=item["call_id"], id=id_)
