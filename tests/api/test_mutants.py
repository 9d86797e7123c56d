"""Each mutant still finds the lines that it breaks."""

from __future__ import annotations

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.promise} {mutant.what}")
def test_its_edit_can_be_made(mutant: Mutant) -> None:
    text = (ROOT / "src" / "stateroom" / mutant.file).read_text(encoding="utf-8")
    assert mutant.old in text, f"{mutant.file} has changed, mend the mutant"
    assert mutant.old != mutant.new
