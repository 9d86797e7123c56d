"""The figures of a comparison as text: medians over the repetitions, [low-high], ratios, targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.peers import COLD, NARROW, OURS

Repetitions = Sequence[dict[str, Any]]
Parts = Callable[[dict[str, Any]], list[dict[str, Any]]]  # the rounds of a peer that are meant
AT_LEAST = (("langgraph", 10.0), ("google-adk", 10.0), ("openai-agents", 1.0))  # DESIGN section 8: peer / ours
TARGET_LENGTH = "1000 items"


def text(repetitions: Repetitions) -> str:
    sections = (machine, real, growth, verdicts, notes)
    return "\n\n".join("\n".join(section(repetitions)) for section in sections)


def spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def ratios(repetitions: Repetitions, name: str, parts: Parts, *, ours: str = OURS) -> list[float]:
    """Peer / ours, one a repetition: the median over the rounds of the time that the same turns took in each."""
    found = []
    for repetition in repetitions:
        pairs = zip(parts(repetition["peers"][name]), parts(repetition["peers"][ours]), strict=True)
        found.append(statistics.median(sum(theirs["s"]) / sum(own["s"]) for theirs, own in pairs))
    return found


def seconds(repetition: dict[str, Any], name: str, parts: Parts) -> list[float]:
    return [s for part in parts(repetition["peers"][name]) for s in part["s"]]


def milliseconds(repetitions: Repetitions, name: str, parts: Parts, at: float = 0.5) -> str:
    return spread([quantile(seconds(r, name, parts), at) * 1000 for r in repetitions])


def quantile(values: Sequence[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * at))]


def of(repetitions: Repetitions, name: str, figure: str) -> list[float]:
    return [repetition["peers"][name][figure] for repetition in repetitions]


def machine(repetitions: Repetitions) -> Iterator[str]:
    probes = [probe for repetition in repetitions for probe in repetition["probes"]]
    fsync, cpu, load = ([probe[name] for probe in probes] for name in ("fsync_s", "cpu_s", "load"))
    yield (
        f"{len(repetitions)} repetitions, medians, [low-high]. {len(probes)} probes between the rounds: fsync of 4 KB "
        f"{spread([s * 1000 for s in fsync])} ms, arithmetic {spread([s * 1000 for s in cpu])} ms, load {spread(load, 1)}."
    )


def real(repetitions: Repetitions) -> Iterator[str]:
    first = repetitions[0]["peers"]
    count, turns = len(first[OURS]["real"]), sum(len(part["s"]) for part in first[OURS]["real"])
    yield f"Real conversations ({count} with {turns} turns): whole turns."
    yield ""
    yield "| peer | p50 ms | p95 ms | peer / ours | CPU ms/turn | commits/turn | peak RSS MB | disk / items |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in first:
        rss, disk = (statistics.median(of(repetitions, name, figure)) for figure in ("rss_mb", "disk"))
        cpu = [sum(part["cpu_s"] for part in r["peers"][name]["real"]) / turns * 1000 for r in repetitions]
        yield (
            f"| {name} | {milliseconds(repetitions, name, parts_real)} | {milliseconds(repetitions, name, parts_real, 0.95)}"
            f" | {spread(ratios(repetitions, name, parts_real))} | {spread(cpu)} | {of(repetitions, name, 'commits')[0]:.1f}"
            f" | {rss:.0f} | {disk:.1f} |"
        )


def parts_real(peer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(peer["real"])


def parts_at(length: str) -> Parts:
    return lambda peer: list(peer["growth"][length])


def growth(repetitions: Repetitions) -> Iterator[str]:
    first = repetitions[0]["peers"]
    lengths = list(first[OURS]["growth"])
    if not lengths:
        return
    heads = [f"{length} ({first[OURS]['items at ' + length]} items)" if "turns" in length else length for length in lengths]
    yield "One conversation at that length: p50 ms of a whole turn, and peer / ours."
    yield ""
    yield f"| peer | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(lengths)
    for name in first:
        cells = [
            f"{milliseconds(repetitions, name, parts_at(length))}, × {spread(ratios(repetitions, name, parts_at(length)), 1)}"
            for length in lengths
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def verdicts(repetitions: Repetitions) -> Iterator[str]:
    """DESIGN section 8: what a peer's turn takes over what ours takes, as it ships, and by what the peer is given."""
    first = repetitions[0]["peers"]
    ours = [name for name in (OURS, NARROW, COLD) if name in first]
    places = {"real conversations": parts_real} | {n: parts_at(n) for n in (TARGET_LENGTH,) if n in first[OURS]["growth"]}
    yield "Targets: peer / ours."
    yield ""
    yield f"| peer, where | target | {' | '.join(f'/ {own}' for own in ours)} |"
    yield "|---|---|" + "---|" * len(ours)
    for name in first:
        least = next((ratio for start, ratio in AT_LEAST if name.startswith(start)), None)
        for place, parts in places.items():
            if least is None or (place != TARGET_LENGTH and least > 1):
                continue
            found = [ratios(repetitions, name, parts, ours=own) for own in ours]
            cells = [f"{spread(each)} {'MET' if statistics.median(each) >= least else 'MISSED'}" for each in found]
            yield f"| {name}, {place} | ≥ {least:g} | {' | '.join(cells)} |"


def notes(repetitions: Repetitions) -> Iterator[str]:
    yield "What each keeps of a turn, and what a turn that returned survives:"
    for name, peer in repetitions[0]["peers"].items():
        yield f"- {name}: {peer['stores']}. Survives: {peer['survives']}."
