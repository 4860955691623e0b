"""Where and from what a run was made: machine, packages, source state, allowed environment.

Owns collection only, at the end of a run, and the rule that no secret and no personal path enters a
bundle. A missing tool leaves a field out; it never stops a run. GPU facts come from `gpu`. Read by
the pipeline.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import fasttrack
from fasttrack.bundle.git import GitError, Repository, scope_digest
from fasttrack.bundle.gpu import gpus
from fasttrack.schema import Claim, Provenance
from fasttrack.schema._json import canonical_bytes
from fasttrack.schema.claim import Scope

ALLOWED_PREFIXES = (
    "CUDA_", "FASTTRACK_", "GLOO_", "GOMP_", "KMP_", "MKL_", "NCCL_", "NVIDIA_", "OMP_",
    "TORCH", "TRITON_", "VLLM_",
)  # fmt: skip
ALLOWED_NAMES = frozenset(
    {"LD_PRELOAD", "PYTHONHASHSEED", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
     "HF_DATASETS_OFFLINE", "MALLOC_ARENA_MAX"}
)  # fmt: skip
CONTAINER_VARIABLE = "FASTTRACK_CONTAINER_DIGEST"
WITHHELD = "(withheld: looks like a secret)"
MAX_VALUE = 1000
NAME_DIGITS = 12
"""Hexadecimal digits of a machine's name."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"(hf|ghp|gho|ghs|github_pat|glpat|pypi|xox[abp])[-_]\w{8,}|\bsk-\w{8,}|AKIA\w{12,}"
    r"|\beyJ[\w-]{8,}|-----BEGIN|://[^/\s@]+:[^/\s@]+@"
)
_WORD = re.compile(r"[A-Za-z0-9+_=]{20,}")
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}\Z")
_PLAIN_ENTROPY_BITS = 3.8


def collect(
    claim: Claim,
    target_name: str,
    checkpoint_folder: Path | None,
    checkpoint_digest: str | None,
    repo: Path,
    extra: Mapping[str, Any],
) -> Provenance:
    """Provenance of a run of `claim` on `target_name`, with `extra` facts under `source.run`.

    `repo` is the repository, or any folder in it, that holds the optimization.
    """
    checkpoint = claim.targets[target_name].checkpoint
    weights = {"name": checkpoint.name} if checkpoint else {}
    if checkpoint_folder is not None:
        weights["folder"] = checkpoint_folder.name
    if checkpoint_digest is not None:
        weights["sha256"] = checkpoint_digest
    versions, records = _packages()
    return Provenance(
        machine=_machine(),
        packages=versions,
        package_records=records,
        checkpoint=weights,
        source={
            **git_state(repo, claim.scope),
            "harness_sha256": harness_digest(),
            "run": dict(extra),
        },
        environment=environment(os.environ),
        container_digest=_container_digest(),
    )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed variables. What looks like a secret keeps its name and loses its value."""
    chosen = {
        name: value
        for name, value in variables.items()
        if name.startswith(ALLOWED_PREFIXES) or name in ALLOWED_NAMES
    }
    return {
        name: WITHHELD if looks_secret(name, value) else _without_home(value)[:MAX_VALUE]
        for name, value in sorted(chosen.items())
    }


def command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line as others may read it: this folder and the user's own are not named."""
    here = f"{Path.cwd()}{os.sep}"
    return tuple(_without_home(word.replace(here, "")) for word in words)


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's name, or the shape of its value, suggests a credential."""
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value):
        return bool(value)
    if _DIGEST.match(value):
        return False
    return any(_random_looking(word) for word in _WORD.findall(value))


def _random_looking(word: str) -> bool:
    counts = Counter(word)
    entropy = -math.fsum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    mixed = any(c.isdigit() for c in word) and any(c.isalpha() for c in word)
    return mixed and entropy > _PLAIN_ENTROPY_BITS


def _without_home(value: str) -> str:
    home = str(Path.home())
    return value.replace(home, "~") if len(home) > 1 else value


def _container_digest() -> str | None:
    value = os.environ.get(CONTAINER_VARIABLE, "")
    return value if _DIGEST.match(value) else None


def git_state(folder: Path, scope: Scope) -> dict[str, Any]:
    """Commit, tree, dirtiness and the digest of the commit's in-scope files, as git sees them.

    Result files under `submissions/` do not make a tree dirty: each run adds one.
    """
    try:
        repository = Repository(folder)
        commit = repository.commit("HEAD")
        tree = repository.tree(commit)
        changed = repository.status()
        files, scope_sha256 = scope_digest(repository, commit, scope.covers)
    except GitError:
        # No repository, or none that can say what it holds: such evidence is not admissible.
        return {"commit": None, "tree": None, "dirty": None}
    return {
        "commit": commit,
        "tree": tree,
        "dirty": bool(changed),
        "changed_files": changed,
        "scope_files": files,
        "scope_sha256": scope_sha256,
    }


def harness_digest() -> str:
    """Digest over this package's own source: an edited harness differs from the released one.

    Without the zoo, which a wheel holds and a checkout has elsewhere: it has a digest of its own.
    """
    root = Path(fasttrack.__file__).parent
    listed = [
        [path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] != "_zoo"
    ]
    return hashlib.sha256(canonical_bytes(sorted(listed))).hexdigest()


def _packages() -> tuple[dict[str, str], dict[str, str]]:
    versions: dict[str, str] = {}
    records: dict[str, str] = {}
    for found in distributions():
        name = found.metadata["Name"]
        if not name or name in versions:
            # The first one on the path is the one that is imported.
            continue
        versions[name] = found.version
        record = found.read_text("RECORD")
        if record:
            records[name] = hashlib.sha256(record.encode("utf-8")).hexdigest()
    return versions, records


def machine_name() -> str:
    """An opaque name of this machine that it keeps: a digest over its GPUs, or over its boot.

    Times of one name may be compared. A machine without GPUs has another one after each boot, and
    none where the kernel does not tell of its boots. No host name goes into it.
    """
    return _name_of(gpus())


def _name_of(found: Sequence[Mapping[str, Any]]) -> str:
    known = sorted(str(gpu["uuid"]) for gpu in found if gpu.get("uuid"))
    told = known or [boot for boot in (_read(_BOOT_ID),) if boot]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:NAME_DIGITS] if told else ""


def describe() -> str:
    """This machine in one line: two of the same line may stand in for each other."""
    found = _machine()
    names = [str(gpu.get("name")) for gpu in found["gpus"]]
    told = [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)] or ["no GPU"]
    memory = f"{round(found['memory_mib'] / 1024)} GiB"
    return ", ".join([found["cpu"], f"{found['cores_allowed']} cores", memory, *told])


def _machine() -> dict[str, Any]:
    devices = gpus()
    return {
        "name": _name_of(devices),
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cpu_flags_sha256": _cpu_flags(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "cgroup": _cgroup(),
        "boot_id_sha256": hashlib.sha256(_read(_BOOT_ID).encode()).hexdigest(),
        "clock": time.get_clock_info("perf_counter").implementation,
        "gpus": devices,
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpu_field(field: str) -> str:
    match = re.search(rf"^{field}\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1) if match else ""


def _cpu_model() -> str:
    return _cpu_field("model name") or platform.processor() or "unknown"


def _cpu_flags() -> str | None:
    flags = _cpu_field("flags") or _cpu_field("Features")
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest() if flags else None


def _cgroup() -> dict[str, str]:
    root = "/sys/fs/cgroup/"
    found = {
        name: _read(root + name) for name in ("cpu.max", "memory.max", "cpuset.cpus.effective")
    }
    return {name: value for name, value in found.items() if value}
