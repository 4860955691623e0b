"""Every way in which a result file is spoilt: one function per defect, named after it.

A defect takes a `Lab` (a copy of the honest file in pieces, two keys, a scratch folder) and returns
the path of the spoilt file. `defect` says which code and member verification must name. The
attacker repairs every layer above the one that is spoilt, so that no earlier check saves the day.
"""

from defects import (
    archive,
    consistency,
    contents,
    documents,
    inputs,
    signatures,
    statements,
    verdicts,
)
from defects.lab import DEFECTS, Defect, Lab

SECTIONS = (
    *(archive, documents, statements, signatures, inputs, verdicts),
    *(consistency, contents),
)
"""Imported for what they register."""

__all__ = ["DEFECTS", "SECTIONS", "Defect", "Lab"]
