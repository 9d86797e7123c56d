"""`make bench`: our doors beside hand-written code, then what people pick today beside us."""

from __future__ import annotations

from bench import compare, doors

if __name__ == "__main__":
    doors.main()
    print()
    compare.main()
