"""The public face changes only on purpose: `python -m tools.public --write` records what is meant."""

from __future__ import annotations

import json

import pytest

from tools import public

RECORDED = json.loads(public.RECORD.read_text(encoding="utf-8"))
TODAY = json.loads(json.dumps(public.today(), ensure_ascii=False))


@pytest.mark.parametrize("module", public.MODULES)
def test_names_and_signatures_are_as_recorded(module: str) -> None:
    assert TODAY["modules"][module] == RECORDED["modules"][module]


def test_error_codes_are_as_recorded() -> None:
    """A code that is gone breaks clients that branch on it; a new one is to be documented."""
    assert TODAY["codes"] == RECORDED["codes"]


def test_the_record_sees_a_changed_signature() -> None:
    class Sample:
        def turn(self, input: str, *, key: str | None = None) -> str:
            return input

    before = public.members(Sample)
    Sample.turn = lambda self, input: input  # type: ignore[assignment,misc]
    assert public.members(Sample) != before
