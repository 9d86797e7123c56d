"""The house rules hold for the sources, and each of them goes red on a small bad sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house_rules

PLACE = "src/stateroom/flows/sample.py"

BAD = {
    "function length": ("def f() -> None:\n" + "    x = 1\n" * 50, "f has 51 lines"),
    "file length": ("x = 1\n" * 401, "the file has 401 lines"),
    "parameters": ("def _f(a, b, *, c, d, e, f, g): ...\n", "_f takes 7 parameters"),
    "keyword-only": ("class Desk:\n    def f(self, scope, a, b, c, d): ...\n", "f takes 4 by position"),
    "nesting": (
        "def f(a):\n for b in a:\n  if b:\n   while b:\n    try:\n     pass\n    except KeyError:\n     with b:\n      pass\n",
        "nested 5 deep",
    ),
    "bare except": ("try:\n    pass\nexcept:\n    pass\n", "catches everything"),
    "broad except": ("try:\n    pass\nexcept Exception as error:\n    print(error)\n", "catches everything"),
    "broadest except": ("try:\n    pass\nexcept (OSError, BaseException):\n    pass\n", "catches everything"),
    "clock module": ("import time\n", "imports time"),
    "chance module": ("from random import random\n", "imports random"),
    "clock call": ("import datetime\n\nNOW = datetime.datetime.now()\n", "uses datetime.datetime.now"),
    "chance call": ("import os\n\nx = os.urandom(8)\n", "uses os.urandom"),
    "late import": ("def f():\n    import json\n", "f imports json inside"),
    "mutable list": ("found = []\n", "found is mutable state"),
    "mutable call": ("from collections import deque\n\nqueue: deque[int] = deque()\n", "queue is mutable state"),
    "changed table": ("TABLE = {1: 2}\n\n\ndef f():\n    TABLE[3] = 4\n", "TABLE is a table and is changed here"),
    "grown table": ("NAMES = []\n\n\ndef f():\n    NAMES.append(4)\n", "NAMES is a table and is changed here"),
    "global": ("x = 1\n\n\ndef f():\n    global x\n    x = 2\n", "global x"),
}

GOOD = {
    "a long file of short functions": "def f() -> None:\n    pass\n" * 200,
    "elif is no deeper than its if": "def f(a):\n"
    + "".join(f"    {'el' * (n > 0)}if a == {n}:\n        pass\n" for n in range(9)),
    "a handler that raises again": "try:\n    pass\nexcept BaseException:\n    print()\n    raise\n",
    "a loop's stopwatch": "import asyncio\n\n\ndef f():\n    return asyncio.get_running_loop().time()\n",
    "an optional extra": "def f():\n    import uvicorn\n",
    "constant tables": "from typing import Final\n\nTABLE = {1: 2}\nnames: Final = [1]\nx = TABLE[1]\n",
    "private classes take what they need": "class _Reader:\n    def __init__(self, a, b, c, d): ...\n",
}


def test_the_sources_keep_the_house_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert house_rules.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("rule", BAD)
def test_a_broken_rule_is_found(rule: str) -> None:
    source, complaint = BAD[rule]
    assert [what for _, what in house_rules.check(PLACE, source) if complaint in what]


@pytest.mark.parametrize("case", GOOD)
def test_what_is_allowed_is_not_complained_about(case: str) -> None:
    assert house_rules.check(PLACE, GOOD[case]) == []


@pytest.mark.parametrize("place", ["src/stateroom/server/app.py", "src/stateroom/flows/work.py"])
def test_faces_and_the_supervisor_may_catch_everything(place: str) -> None:
    assert house_rules.check(place, BAD["broad except"][0]) == []


def test_clock_and_ids_may_ask_the_machine() -> None:
    assert house_rules.check("src/stateroom/clock.py", "import time\n") == []


def test_exceptions_to_the_rules_are_few_and_have_reasons() -> None:
    assert len(house_rules.BROAD_EXCEPT) <= 5
    assert all(house_rules.BROAD_EXCEPT.values())


def test_the_command_says_where_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text("x = 1\nfound = []\n")
    assert house_rules.main([str(sample)]) == 1
    assert f"{sample}:2: found is mutable state" in capsys.readouterr().out
