"""Lets the tests of this folder import its record builders, whichever folder pytest starts in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
