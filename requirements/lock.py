"""Write the lock files beside this script from pyproject.toml: `make lock`.

Owns the five locks and what each holds:

- `build.txt`  what builds source distributions and the editable installs
- `core.txt`   `pip install fasttrack`, any platform
- `dev.txt`    the core with the `dev` extra, any platform
- `cpu-linux-x86_64.txt`  the core with `validate`, `cpu`, `evals` and `ray`: the whole vLLM CPU
  engine, CPython 3.11 on x86-64 Linux, one requirement a line
- `cute-linux-x86_64.txt`  the extra `audit` by itself: kernel compiler and disassembler, CPython
  3.12 on x86-64 Linux, for an environment of their own

All but the last agree on every version they share, so one environment can hold them all. Pins
stay as they are unless `--upgrade` is given. Does not install anything; the Makefile reads the
result.

The CPU build of torch is not on the package index: its wheel is read from the folder given with
`--torch-wheels`, and its digest taken from that file. Compare the digest with the one PyTorch's
own CPU wheel index states before committing a new one.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
CPU_LOCK = HERE / "cpu-linux-x86_64.txt"
ENGINE_EXTRAS = ("validate", "cpu", "evals", "ray")
PYTHON = "3.11"
PLATFORM = "x86_64-manylinux_2_35"
CUTE_PYTHON = "3.12"
"""The newest that every package of the kernel compiler has a wheel for."""

# Declared by vLLM or xgrammar, not needed to decode text on a CPU: the first three want a torch
# build of their own to import at all, and triton is a gigabyte of GPU compiler.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")

HEADER = """\
# Written by `make lock`; do not edit. CPython 3.11, x86-64 Linux, glibc 2.35 or newer.
# Install with: pip install --require-hashes --no-deps -r requirements/{name}
# Left out on purpose, declared but not needed here: {left_out}.
# torch is PyTorch's own CPU build, which the package index does not carry; its digest is that of
# the file PyTorch's CPU wheel index serves, so a wheel from elsewhere must be that very file.
"""


def uv_compile(*arguments: str | Path) -> None:
    """Run uv's resolver; raises `CalledProcessError` after uv has told why on stderr."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"]
    command += ["--generate-hashes", "--custom-compile-command", "make lock"]
    subprocess.run([*command, *map(str, arguments)], check=True)


def pins(lock: Path) -> list[str]:
    """The `name==version` part of every requirement in a lock file of ours; [] if there is none."""
    lines = lock.read_text().splitlines() if lock.exists() else []
    return [line.split()[0] for line in lines if "==" in line and not line.lstrip().startswith("#")]


def file_digest(url: str) -> str:
    """SHA-256 of the wheel behind a `file:` URL, in hexadecimal."""
    with open(url.removeprefix("file://"), "rb") as wheel:
        return hashlib.file_digest(wheel, "sha256").hexdigest()


def requirement(package: dict[str, Any]) -> str:
    """One lock line for a package of a PEP 751 file: its wheels, or its sdist if it has none."""
    files = package.get("wheels") or [package["sdist"]]
    digests = (file["hashes"].get("sha256") or file_digest(file["url"]) for file in files)
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in sorted(digests))
    return f"{package['name']}=={package['version']} {hashes}"


def lock_engine(scratch: Path, torch_wheels: Path, keep: Iterable[str]) -> None:
    """Resolve the vLLM CPU set for one platform and write it one requirement a line."""
    constraints = scratch / "keep.txt"
    constraints.write_text("\n".join(keep) + "\n")
    resolved = scratch / "pylock.cpu.toml"
    uv_compile(
        PROJECT,
        *(word for extra in ENGINE_EXTRAS for word in ("--extra", extra)),
        *(word for name in LEFT_OUT for word in ("--no-emit-package", name)),
        *("--python-version", PYTHON, "--python-platform", PLATFORM),
        *("--constraints", constraints, "--find-links", torch_wheels),
        *("--format", "pylock.toml", "--output-file", resolved),
    )
    packages = tomllib.loads(resolved.read_text())["packages"]
    header = HEADER.format(name=CPU_LOCK.name, left_out=", ".join(LEFT_OUT))
    CPU_LOCK.write_text(header + "".join(f"{requirement(package)}\n" for package in packages))


def lock_anywhere(scratch: Path, upgrade: bool) -> None:
    """Resolve build, core and dev for every platform, at the engine set's versions."""
    shared = scratch / "shared.txt"
    shared.write_text("\n".join(pins(CPU_LOCK)) + "\n")
    build = scratch / "build.in"
    build.write_text("\n".join(tomllib.loads(PROJECT.read_text())["build-system"]["requires"]))
    options: Sequence[str | Path] = [
        *("--universal", "--python-version", PYTHON, "--constraints", shared, "--no-annotate"),
        *(("--upgrade",) if upgrade else ()),
    ]
    uv_compile(build, *options, "--output-file", HERE / "build.txt")
    uv_compile(PROJECT, *options, "--output-file", HERE / "core.txt")
    uv_compile(PROJECT, "--extra", "dev", *options, "--output-file", HERE / "dev.txt")


def lock_cute(scratch: Path, upgrade: bool) -> None:
    """Resolve the extra `audit` without the core: the child that compiles needs nothing else."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    wanted = scratch / "cute.in"
    wanted.write_text("\n".join(extras["audit"]))
    uv_compile(
        wanted,
        *("--python-version", CUTE_PYTHON, "--python-platform", PLATFORM, "--no-annotate"),
        *(("--upgrade",) if upgrade else ()),
        *("--output-file", HERE / "cute-linux-x86_64.txt"),
    )


def main() -> None:
    """Parse the command line and rewrite all locks."""
    parser = argparse.ArgumentParser(description="Write requirements/*.txt from pyproject.toml.")
    parser.add_argument("--upgrade", action="store_true", help="let every pin move")
    parser.add_argument(
        "--torch-wheels", type=Path, required=True, help="folder that holds torch's CPU wheel"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = [] if arguments.upgrade else pins(CPU_LOCK)
        lock_engine(Path(scratch), arguments.torch_wheels, keep)
        lock_anywhere(Path(scratch), arguments.upgrade)
        lock_cute(Path(scratch), arguments.upgrade)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
