"""What a bundle says about itself: manifest, provenance, in-toto statement, run information."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from fasttrack.schema.claim import Frozen, Tier

PREDICATE_TYPE = "https://fasttrack.dev/attestation/validation/v1"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
SIGNATURE_NAMESPACE = "fasttrack-validation-v1@fasttrack.dev"


class FileEntry(Frozen):
    """One file of a bundle. `path` is POSIX, relative, NFC."""

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: Literal["claim", "record", "verdict", "provenance", "report", "log"]


class Manifest(Frozen):
    """Sorted list of a bundle's files; its digest is the subject of the statement."""

    schema_: Literal["fasttrack.manifest/v1"] = Field(
        default="fasttrack.manifest/v1", alias="schema"
    )
    files: tuple[FileEntry, ...]

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        populate_by_name=True,
    )


class PlantResult(Frozen):
    """How one plant of the zoo was judged."""

    group: Literal["cheats", "honest"]
    name: str
    row: int | None
    """Row of the catalogue of cheats."""
    code: str
    """The code that had to refuse it; empty for honest work."""
    state: Literal["right", "wrong", "not run"]
    detail: str = ""


class MutantResult(Frozen):
    """Spoilt copies of one good result file, and how many of them verification refused."""

    made: int
    refused: int
    seed: int
    detail: str = ""


class SelfTest(Frozen):
    """What this harness did with planted cheats and honest work, on the machine of the run."""

    harness_sha256: str
    catalogue_sha256: str
    plants: tuple[PlantResult, ...]
    mutants: MutantResult | None = None
    """None where they were left out."""

    def count(self, group: str) -> tuple[int, int]:
        """(judged right, judged) of `cheats` or `honest`; those not run count nowhere."""
        states = [p.state for p in self.plants if p.group == group and p.state != "not run"]
        return states.count("right"), len(states)

    @property
    def kill_rate(self) -> float:
        """Cheats caught with the right code over cheats run; 0 when none was."""
        right, total = self.count("cheats")
        return right / total if total else 0.0

    @property
    def flawless(self) -> bool:
        """Whether something was run and all of it judged right."""
        states = {plant.state for plant in self.plants}
        refused = self.mutants is None or self.mutants.refused == self.mutants.made
        return "right" in states and "wrong" not in states and refused

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the plants that were judged wrongly."""
        return tuple(plant.name for plant in self.plants if plant.state == "wrong")

    @property
    def sentence(self) -> str:
        """``41/41 cheats caught, 9/9 honest accepted, 5 not run here``."""
        (caught, cheats), (accepted, honest) = self.count("cheats"), self.count("honest")
        idle = sum(plant.state == "not run" for plant in self.plants)
        told = f"{caught}/{cheats} cheats caught, {accepted}/{honest} honest accepted"
        if self.mutants is not None:
            told += f", {self.mutants.refused}/{self.mutants.made} spoilt files refused"
        return told + (f", {idle} not run here" if idle else "")


class RunInfo(Frozen):
    """`claim/run.json`: which run this is. Written when the run begins, before any measurement."""

    run_id: str
    target: str
    tier: Tier
    seed: int
    stages: tuple[str, ...]
    """Stages asked for; fewer than all of them makes the bundle inadmissible."""
    cell: str | None = None
    """Glob over cell names that were measured; anything but null makes the bundle inadmissible."""
    command: tuple[str, ...]
    claim_sha256: str
    policy_sha256: str
    plan_sha256: str
    evals_sha256: str = ""
    """Of `claim/evals.json`, the frozen items of external evals; empty where there are none."""
    agent: bool = False
    """Whether agent traffic was asked for on the command line (`--agent`)."""
    harness_version: str
    created_utc: str
    self_test: SelfTest | None = None
    """Made before a full run by the harness that ran it; without one the bundle is inadmissible."""


class Provenance(Frozen):
    """Machine, software and source state, taken at the end of a run."""

    machine: Mapping[str, Any]
    packages: Mapping[str, str]
    """Distribution name to version."""
    package_records: Mapping[str, str]
    """Distribution name to SHA-256 of its RECORD file: edited installations differ."""
    checkpoint: Mapping[str, str]
    source: Mapping[str, Any]
    """git commit, tree, dirty state of the repository that holds the optimization."""
    environment: Mapping[str, str]
    """Allow-listed variables only."""
    container_digest: str | None = None
    """As declared by the caller; a container cannot prove its own digest."""


class Statement(Frozen):
    """in-toto Statement v1 with this project's predicate."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Mapping[str, Any], ...] = Field(min_length=1)
    predicate_type: str = Field(alias="predicateType")
    predicate: Mapping[str, Any]

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        populate_by_name=True,
    )
