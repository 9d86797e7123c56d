"""How much is done: bounded in the suite, whole in the campaign (`make crash`, which sets STATEROOM_CAMPAIGN=whole)."""

from __future__ import annotations

import os

WHOLE = os.environ.get("STATEROOM_CAMPAIGN") == "whole"

POWER_CUTS = 25 if WHOLE else 3
POWER_CUTS_WITHOUT_FSYNC = 5 if WHOLE else 1
KILLS = 220 if WHOLE else 12
STRIDE = 1 if WHOLE else 5  # every n-th point of a sweep
SEED = int(os.environ.get("STATEROOM_SEED", "1"))
CAMPAIGNS, CLIENT_KILLS = (10, 100) if WHOLE else (1, 25)  # of random clients, with seeds from SEED on
