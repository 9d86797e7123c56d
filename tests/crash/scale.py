"""How much is done: bounded in the suite, whole in the campaign (`python -m tests.crash.campaign`)."""

from __future__ import annotations

import os

FULL = os.environ.get("STATEROOM_CRASH") == "full"

POWER_CUTS = 25 if FULL else 3
POWER_CUTS_WITHOUT_FSYNC = 5 if FULL else 1
KILLS = 220 if FULL else 12
SEED = int(os.environ.get("STATEROOM_SEED", "1"))
