"""The suite is made of parts; none of them hides what another one holds."""

from __future__ import annotations

from collections import Counter

from stateroom.conformance import BackendConformance
from stateroom.conformance.suite import Suite


def test_no_part_hides_a_test_or_a_sentence_of_another() -> None:
    parts = [part for part in BackendConformance.__mro__ if issubclass(part, Suite) and part not in (Suite, BackendConformance)]
    names = Counter(name for part in parts for name in vars(part) if not name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
