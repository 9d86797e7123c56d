"""The whole crash campaign: `python -m tests.crash.campaign`. STATEROOM_SEED chooses the moments."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    os.environ["STATEROOM_CAMPAIGN"] = "whole"
    return int(pytest.main([str(Path(__file__).parent), "-v", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
