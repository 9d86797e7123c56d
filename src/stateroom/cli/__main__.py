"""`python -m stateroom.cli`: the same as `stateroom`."""

import sys

from stateroom.cli.main import main

sys.exit(main())
