"""Honest runs with one thing spoilt, a module per stage; `cheats/test_cheats.py` judges all."""

from __future__ import annotations

from spoilt.agent import AGENT
from spoilt.cheat import Cheat
from spoilt.compiled import COMPILED
from spoilt.features import FEATURES
from spoilt.isolation import ISOLATION
from spoilt.numerics import NUMERICS
from spoilt.path import PATH
from spoilt.proofs import PROOFS
from spoilt.quality import QUALITY
from spoilt.speed import SPEED

CHEATS: tuple[Cheat, ...] = (
    *COMPILED,
    *NUMERICS,
    *PATH,
    *PROOFS,
    *FEATURES,
    *QUALITY,
    *SPEED,
    *ISOLATION,
    *AGENT,
)
