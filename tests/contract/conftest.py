"""Lets the suites of this folder import the record builders of the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "zoo"))
