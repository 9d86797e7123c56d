"""Three coding agents on a blackboard: a planner, a coder and a reviewer who know nothing of each other but one desk.

python examples/blackboard.py

  spec      value    what is to be built; only the planner may write it, and only the coder the files
  plan      value    its steps and their status, under the shipped schema stateroom/plan/1
  files     map      path -> who wrote it, its SHA-256 and its text: the only files there are, so nobody imports a file that
                     is not there
  findings  list     what the reviewer says
Each of them watches the desk's patches and does what is its own to do. Before each module the coder names a version; when the
reviewer finds that a module does not run, the desk goes back to that version, as if it had never been written.
"""

import asyncio
import hashlib

import stateroom
from stateroom import Changes

MODULES = {
    "cart.py": ["def total(prices): return sum(prices)"],
    "shop.py": ["import cart, taxes\n", "import cart\ndef bill(prices): return cart.total(prices)"],  # the first try is wrong
}


def entry(author: str, text: str) -> dict[str, str]:
    """A file as the map shows it."""
    return {"by": author, "sha256": hashlib.sha256(text.encode()).hexdigest()[:12], "text": text}


def fault(path: str, files: dict[str, dict[str, str]]) -> str:
    """Why a module does not run; "" when it does. The file map answers which imports exist."""
    for line in files[path]["text"].splitlines():
        for name in line.removeprefix("import ").split(",") if line.startswith("import ") else []:
            if f"{name.strip()}.py" not in files:
                return f"{path} imports {name.strip()}, which is not there"
    return ""


async def planner(desk: stateroom.Desk) -> None:
    """Writes the architecture, once, and marks what the reviewer let pass; ends the session when all of it has."""
    steps = [{"title": path, "status": "pending"} for path in MODULES]
    board = Changes().set("spec", "A shop in two modules.", expected=0)
    await desk.apply(board.set("plan", {"steps": steps}, schema="stateroom/plan/1"))
    async for event in desk.watch():
        for finding in event.get("slots", {}).get("findings", [])[-1:]:
            await desk.refresh()
            if finding["fault"]:
                continue
            index = next(n for n, step in enumerate(desk.state["plan"]["steps"]) if step["title"] == finding["path"])
            await desk.edit("plan", [{"op": "replace", "path": f"/steps/{index}/status", "value": "completed"}])
            if all(step["status"] == "completed" for step in desk.state["plan"]["steps"]):
                await desk.checkpoint("done")
                await desk.append("findings", {"path": "", "fault": "", "over": True})
                return


async def coder(desk: stateroom.Desk) -> None:
    """Writes the first module of the plan that is not there yet; a module that was taken back is written anew."""
    tries = dict.fromkeys(MODULES, 0)
    async for event in desk.watch():
        await desk.refresh()
        if is_over(desk):
            return
        if not {"spec", "files", "plan"} & {*event.get("slots", {}), *event.get("removed", [])}:
            continue
        files, steps = desk.state.get("files", {}), desk.state.get("plan", {}).get("steps", [])
        todo = next((step["title"] for step in steps if step["status"] != "completed"), None)
        if todo is None or todo in files:
            continue
        await desk.checkpoint(f"before {todo}, try {tries[todo]}")
        text = MODULES[todo][min(tries[todo], len(MODULES[todo]) - 1)]
        tries[todo] += 1
        print(f"coder:    {todo}, try {tries[todo]}")
        await desk.put("files", {todo: entry("coder", text)})


async def reviewer(desk: stateroom.Desk) -> None:
    """Looks at each module as it comes. One that does not run is rolled back; the finding stays, it is written after."""
    seen: set[tuple[str, str]] = set()
    async for _ in desk.watch():
        await desk.refresh()
        if is_over(desk):
            return
        files = desk.state.get("files", {})
        for path, file in files.items():
            if (path, file["sha256"]) in seen:
                continue
            seen.add((path, file["sha256"]))
            why = fault(path, files)
            print(f"reviewer: {why or f'{path} runs'}")
            if why:
                before = next(mark for mark in await desk.checkpoints() if mark.name.startswith(f"before {path}"))
                await desk.roll_back(before.name)
            await desk.append("findings", {"path": path, "fault": why})


def is_over(desk: stateroom.Desk) -> bool:
    return any(finding.get("over") for finding in desk.state.get("findings", []))


async def main() -> None:
    async with await stateroom.open("sqlite:///blackboard-data") as room:
        board = await room.open_session()
        await board.allow("planner", read=["*"], write=["spec", "plan", "findings"])
        await board.allow("coder", read=["spec", "plan", "files", "findings"], write=["files"])
        await board.allow("reviewer", read=["*"], write=["*"])  # going back changes whatever it meets
        desks = [await room.session(board.id, agent=name) for name in ("planner", "coder", "reviewer")]
        async with asyncio.timeout(20):
            await asyncio.gather(planner(desks[0]), coder(desks[1]), reviewer(desks[2]))
        await board.refresh()
        print("files:   ", {path: file["sha256"] for path, file in board.state["files"].items()})
        undone = [mark for mark in await board.checkpoints() if mark.kind == "undone"]
        lost = (await board.at(undone[0].version))["files"]["shop.py"]["text"]
        print("undone:  ", [mark.version for mark in undone], repr(lost))


if __name__ == "__main__":
    asyncio.run(main())
