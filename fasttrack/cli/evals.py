"""`fasttrack evals prepare`: freeze the items of a claim's external evals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from fasttrack import checkpoints, folders
from fasttrack.claim import load
from fasttrack.cli.common import (
    DataOption,
    FolderArgument,
    JsonOption,
    TargetOption,
    data_files,
    emit,
    pick_target,
    talk,
)
from fasttrack.engine import get as get_engine
from fasttrack.engine.setting import Setting
from fasttrack.errors import UsageError
from fasttrack.evals import manifest
from fasttrack.evals.external import gsm_symbolic
from fasttrack.evals.external.prepare import prepare as prepare_items
from fasttrack.plan import check_target
from fasttrack.schema._json import canonical_bytes

app = typer.Typer(no_args_is_help=True, help="Items of public benchmarks, frozen before a run.")


@app.callback()
def evals() -> None:
    """Items of public benchmarks, frozen before a run."""


@app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only gsm-symbolic can be made.")],
    out: Annotated[Path, typer.Option(help="File to write: JSON lines.")],
    items: Annotated[int, typer.Option(min=1, help="Items, spread over 100 templates.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of names and numbers.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Make a data file of an eval that has a generator.

    The package searches each template's numbers exhaustively, up to minutes for some of them: all
    100 templates may take an hour, once. Fewer items than templates use only the first ones.
    """
    if name != "gsm-symbolic":
        raise UsageError(
            "USE-001", f"{name!r} cannot be made", next_step="only gsm-symbolic has a generator"
        )
    if out.exists():
        raise UsageError("USE-001", f"{out} exists", next_step="name another file, or remove it")
    console = talk()
    made = gsm_symbolic.rows(items, seed, lambda text: console.print(text, markup=False))
    content = b"".join(canonical_bytes(row) + b"\n" for row in made)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    told = {"file": str(out), "items": items, "data_sha256": digest}
    emit(told if as_json else f"{out} {digest}", as_json=as_json)
    return 0


@app.command()
def prepare(
    folder: FolderArgument,
    target: TargetOption = None,
    data: DataOption = None,
    cache: Annotated[Path, typer.Option(help="Where built checkpoints are kept.")] = Path(
        ".fasttrack"
    ),
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds one call to an engine may take.")
    ] = 900.0,
    as_json: JsonOption = False,
) -> int:
    """Freeze ids, prompts, scorer and data of a target's external evals into the folder.

    Each prompt is rendered by the target's own chat template and tokenizer. `validate` asks these
    items and refuses others.
    """
    frozen = load(folder)
    chosen = pick_target(list(frozen.claim.targets), target)
    wanted = check_target(frozen.claim, chosen)
    if not wanted.evals:
        raise UsageError(
            "USE-001",
            f"target {chosen!r} names no external eval",
            next_step=f"add [targets.{chosen}.evals.aime25], .gsm-symbolic or .mrcr to claim.toml",
        )
    engine = get_engine(wanted.engine)
    engine.check()
    weights, digest = None, "none"
    if wanted.checkpoint is not None:
        weights, digest = checkpoints.ensure(
            wanted.checkpoint, cache / "checkpoints", cache / "logs"
        )
    console = talk()
    setting = Setting(
        claim=frozen.claim,
        target_name=chosen,
        engine=engine,
        checkpoint=weights,
        checkpoint_sha256=digest,
        source_sha256=lambda: folders.digest(frozen.folder.resolve()),
        logs=cache / "logs",
        folder=frozen.folder,
        seed=0,
        data=data_files(data),
        timeout_s=timeout,
        say=lambda text: console.print(text, markup=False),
    )
    made = prepare_items(setting)
    told = []
    for one in made:
        path = manifest.write(one, frozen.folder)
        bins = [item.bin for item in one.items]
        told.append(
            {
                "eval": one.eval,
                "file": str(path),
                "items": len(one.items),
                "samples": one.samples,
                "scorer": one.scorer,
                "data_sha256": one.data_sha256,
                "bins": {name: bins.count(name) for name in dict.fromkeys(bins)},
            }
        )
    if as_json:
        emit({"target": chosen, "evals": told}, as_json=True)
    else:
        emit("\n".join(str(one["file"]) for one in told), as_json=False)
    return 0
