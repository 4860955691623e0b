"""Where the data of an external eval lies on this machine: a given file, the optimization's folder,
or the Hugging Face hub at a pinned commit. Leaf; nothing is ever taken in another file's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fasttrack.errors import EnvironmentUnmet, UsageError
from fasttrack.schema import Claim
from fasttrack.schema.claim import ExternalEval


def locate(claim: Claim, target: str, folder: Path, given: Mapping[str, Path]) -> dict[str, Path]:
    """The data file of every external eval of a target, by eval; it may not exist.

    `given` are files of this machine that stand for what the claim names: their digests are checked
    like any other's. Raises `UsageError` USE-001 for one of no eval, `EnvironmentUnmet` EVL-008 for
    what the hub does not hand out.
    """
    wanted = claim.targets[target].evals
    unknown = given.keys() - wanted.keys()
    if unknown:
        raise UsageError(
            "USE-001",
            f"--data names {min(unknown)!r}, which is no external eval of target {target!r}",
            next_step=f"choose from {', '.join(sorted(wanted)) or 'none: the target has no evals'}",
        )
    return {
        name: given.get(name) or (_from_hub(name, one.repo, one) if one.repo else folder / one.file)
        for name, one in wanted.items()
    }


def _from_hub(name: str, repo: str, wanted: ExternalEval) -> Path:
    """From the hub client's cache, else by download. The client is `huggingface_hub`."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise EnvironmentUnmet(
            "ENV-001",
            "data from the hub need the package 'huggingface_hub'",
            next_step="pip install 'fasttrack[evals]'",
        ) from error
    told = f"{repo} {wanted.file} at {wanted.revision}"
    try:
        path = Path(
            hf_hub_download(
                repo_id=repo,
                filename=wanted.file,
                repo_type="dataset",
                revision=wanted.revision,
            )
        )
        if wanted.revision not in path.parts:
            raise ValueError("the hub answered with another commit")
    except Exception as error:  # the client's errors have no common base
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise EnvironmentUnmet(
            "EVL-008",
            f"the data of {name} cannot be had: {told}: {type(error).__name__}: {first}",
            next_step=f"bring the file from a machine with a network and pass --data {name}=FILE",
            cell=name,
        ) from error
    return path
