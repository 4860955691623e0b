"""Lets unit tests import the record builders of the zoo, whichever folder pytest starts in, and
keeps property tests the same on every machine: no deadlines, and the same examples each time."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parents[1] / "zoo"))

settings.register_profile("fasttrack", deadline=None, derandomize=True, database=None)
settings.load_profile("fasttrack")
