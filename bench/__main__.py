"""`make bench`: our doors beside hand-written code, then what people pick today beside us; on SQLite, then on PostgreSQL."""

from __future__ import annotations

from bench import compare, doors
from bench.postgres import doors as postgres

BOUNDED = ("--store", "postgres", "--reps", "2", "--conversations", "8", "--lengths", "10 items,100 items,1000 items")

if __name__ == "__main__":
    doors.main()
    print()
    compare.main()
    print("\nOn PostgreSQL:\n")
    postgres.main(())
    print()
    compare.main(BOUNDED)
