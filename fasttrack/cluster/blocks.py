"""The perf stage on a Ray cluster: a block of sessions is one task, and all are on one node.

A speed-up is a ratio of times of one machine, so the node is chosen once. When it is lost, the
block it was measuring is measured again, whole, on another node of the same description, and a
`FailureRecord` says so; a block is never put together from two nodes. Which node a session ran on
is in its `MonitorRecord`, and the rules look at it. Ray is imported on use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from fasttrack import folders
from fasttrack.cluster import node
from fasttrack.engine.setting import Setting
from fasttrack.errors import EnvironmentUnmet, RunError
from fasttrack.schema import FailureRecord, MonitorRecord, Record
from fasttrack.schema.claim import Shape

POLL_S = 1.0
CONNECT_S = 5.0
LOST_S = 60.0
"""How long after its worker died a node may take to be known as lost."""
SHORT = 12
"""Hexadecimal digits of a node's name that are told."""

Lost = Callable[[FailureRecord], None]
Spec = Mapping[str, Any]


class Blocks:
    """Runs units of the perf stage on a cluster. Use as a context manager, then as a runner.

    `specs`: all units of the stage; `device`: whether the engine runs on GPUs where there are
    some; `lost` is told of every block that has to be repeated.
    """

    def __init__(self, address: str, specs: Sequence[Spec], device: bool, lost: Lost) -> None:
        self._address = address
        self._device = device
        self._specs = specs
        self._lost = lost
        self._gone: set[str] = set()
        self._node: Mapping[str, Any] | None = None
        self._machine = ""
        self._done: dict[tuple[int, int], tuple[Record, ...]] = {}

    def __enter__(self) -> Blocks:
        """Connect.

        Raises `EnvironmentUnmet` ENV-001 without Ray, RAY-001 where no cluster answers.
        """
        if importlib.util.find_spec("ray") is None:
            raise EnvironmentUnmet(
                "ENV-001", "--ray needs the package 'ray'", next_step="pip install 'fasttrack[ray]'"
            )
        self._ray: Any = importlib.import_module("ray")
        # Ray tells of lost nodes on standard output, which is the command's result alone.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        try:
            _answers(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            self._stdout.__exit__(None, None, None)
            told = " ".join(str(error).split())[:300]
            raise EnvironmentUnmet(
                "RAY-001",
                f"no Ray cluster at {self._address}: {told}",
                next_step="`ray status --address ADDRESS`; `ray start --head` begins a cluster",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Ends the workers too; their engines see their channel close and end.
        self._ray.shutdown()
        self._stdout.__exit__(kind, error, trace)

    def __call__(self, setting: Setting, spec: Spec) -> list[Record]:
        """Records of one session; the first one asked for of a block has the block measured.

        Raises `EnvironmentUnmet` RAY-003 without a node that fits, RAY-004 for one that holds other
        files, `RunError` ENG-003 for a worker that died on a living node, and the error that ended
        the block on its node.
        """
        place = spec["block"], spec["position"]
        if place not in self._done:
            self._measure(setting, [one for one in self._specs if one["block"] == place[0]])
        return list(self._done.pop(place))

    def _measure(self, setting: Setting, specs: Sequence[Spec]) -> None:
        block = specs[0]["block"]
        done = setting.settled(block, specs[0]["pairs"]) if block else frozenset()
        moved = _movable(setting, done)
        lost_on = ""
        while True:
            chosen = self._node or self._choose(setting, moved, specs)
            name = chosen["NodeID"]
            if lost_on:
                self._tell(specs[0], lost_on, name)
            setting.say(f"block {block} on node {name[:SHORT]}")
            here = replace(moved, place={"node": name[:SHORT], "machine": self._machine})
            made = self._ask(chosen, specs, node.measure, here, specs, os.environ.get(node.THREADS))
            if made is not None:
                break
            lost_on = name
        if made.kind is not None:
            raise made.kind(**made.told)
        for spec, records in zip(specs, made.sessions, strict=True):
            self._done[block, spec["position"]] = records

    def _tell(self, spec: Spec, lost: str, now: str) -> None:
        self._lost(
            FailureRecord(
                stage="perf",
                unit=f"block{spec['block']}",
                code="RAY-002",
                cause=f"node {lost[:SHORT]} was lost while it measured block {spec['block']}; the "
                f"whole block is measured again, on node {now[:SHORT]}",
                next="nothing to do: no session of the first attempt counts",
            )
        )

    def _choose(self, setting: Setting, moved: Setting, specs: Sequence[Spec]) -> Mapping[str, Any]:
        """A living node that has what is needed, of the description of those before it."""
        before = [r.values for r in setting.earlier() if isinstance(r, MonitorRecord)]
        places = [values for values in before if "node" in values]
        wanted = self._machine or (str(places[-1]["machine"]) if places else "")
        last = places[-1]["node"] if places else None
        need = f"{self._most_gpus()} GPUs" if self._gpus() else "a CPU"
        fitting = [one for one in self._alive() if self._fits(one)]
        others = set()
        for one in sorted(fitting, key=lambda one: one["NodeID"][:SHORT] != last):
            found = self._ask(one, specs, node.describe, moved)
            if found is None:
                continue
            if wanted and found.machine != wanted:
                others.add(found.machine)
                continue
            _same_files(moved, one["NodeID"], found)
            self._node, self._machine = one, found.machine
            return one
        told = f"no node with {need} answers"
        if wanted:
            told = f"no node like the one that was lost is left: {wanted}"
            if others:
                told += f"; there is {'; '.join(sorted(others))}"
        raise EnvironmentUnmet(
            "RAY-003",
            told,
            next_step="add such a node to the cluster, then repeat the command: it goes on",
        )

    def _ask(
        self,
        chosen: Mapping[str, Any],
        specs: Sequence[Spec],
        function: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """The function's result on that node, which it has to itself; None if the node is lost."""
        name, has = chosen["NodeID"], chosen["Resources"]
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=name, soft=False
        )
        gpus = _gpus_of(specs[0]) if self._gpus() and function is node.measure else 0
        task = self._ray.remote(function).options(
            max_retries=0,
            scheduling_strategy=pinned,
            num_gpus=gpus,
            num_cpus=1 if gpus else has["CPU"],
        )
        answer = task.remote(*arguments)
        try:
            while not self._ray.wait([answer], timeout=POLL_S)[0]:
                pass
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            deadline = time.monotonic() + LOST_S
            while any(one["NodeID"] == name for one in self._alive()):
                if time.monotonic() > deadline:
                    told = " ".join(str(error).split())[:300]
                    raise RunError(
                        "ENG-003",
                        f"the worker on node {name[:SHORT]} died, and the node did not: {told}",
                    ) from error
                time.sleep(POLL_S)
            self._gone.add(name)
            self._node = None
            return None

    def _alive(self) -> list[Mapping[str, Any]]:
        return [n for n in self._ray.nodes() if n["Alive"] and n["NodeID"] not in self._gone]

    def _gpus(self) -> bool:
        """Whether sessions need GPUs: they do wherever the cluster has some."""
        return any(one["Resources"].get("GPU") for one in self._ray.nodes()) and self._device

    def _most_gpus(self) -> int:
        """GPUs of the largest session: all of them run on one node."""
        return max(_gpus_of(spec) for spec in self._specs)

    def _fits(self, one: Mapping[str, Any]) -> bool:
        has = one["Resources"]
        if self._gpus():
            return bool(has.get("GPU", 0) >= self._most_gpus())
        return bool(has.get("CPU", 0) >= 1)


def _gpus_of(spec: Spec) -> int:
    """GPUs of a session: its tensor parallel size, which its other kinds of parallelism share."""
    return Shape(*spec["shape"]).tensor_parallel_size


def _same_files(setting: Setting, name: str, found: node.Holdings) -> None:
    """Raise `EnvironmentUnmet` RAY-004 unless the node holds what this machine does."""
    ours = dict(node.describe(replace(setting, checkpoint=None)).files)
    if setting.checkpoint is not None:
        ours["checkpoint"] = setting.checkpoint_sha256
    odd = [key for key, digest in ours.items() if found.files.get(key) != digest]
    if odd:
        raise EnvironmentUnmet(
            "RAY-004",
            f"node {name[:SHORT]} holds another {', '.join(odd)} than this machine",
            next_step="share the folders, or install and copy the same files to every node",
        )


def _movable(setting: Setting, done: frozenset[str]) -> Setting:
    """The setting as it can travel: with whole paths, and without what only the driver knows."""
    folder = setting.folder.resolve()
    return replace(
        setting,
        folder=folder,
        checkpoint=setting.checkpoint and setting.checkpoint.resolve(),
        logs=setting.logs.resolve(),
        source_sha256=functools.partial(folders.digest, folder),
        settled=functools.partial(_settled, done),
        say=_nothing,
        earlier=tuple,
        journal=None,
    )


def _settled(done: frozenset[str], block: int, pairs: int) -> frozenset[str]:
    """What the driver found before it sent the block."""
    return done


def _nothing(text: str) -> None:
    """A node talks to nobody."""


def _answers(address: str) -> None:
    """Raise `OSError` if nobody listens at ``host:port``: Ray itself would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_S).close()
