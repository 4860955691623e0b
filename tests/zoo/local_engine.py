"""The fake engine in the test's own process: no child and no channel, so rooms run in no time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zoo_records as zoo

from fasttrack.engine._fake_child import Backend
from fasttrack.engine.base import (
    Caches,
    CachesSeen,
    Engine,
    Evidence,
    Generation,
    Inspection,
    Launch,
    Request,
    Routed,
    SessionInfo,
)
from fasttrack.engine.serve import Coded
from fasttrack.engine.setting import Setting
from fasttrack.errors import RunError
from fasttrack.schema import Target


class LocalSession:
    """Answers as `fasttrack.engine.base.Session` does."""

    def __init__(self, launch: Launch) -> None:
        self._backend = Backend()
        self.peak_rss_mib: float | None = None
        plugin = launch.plugin.json_value() if launch.plugin else None
        try:
            told = self._backend.start(
                launch.session, launch.arm, launch.target.json_value(),
                dict(launch.additional_config), plugin, None, launch.count_nans,
                launch.forces,
            )  # fmt: skip
        except Coded as error:
            raise RunError(error.code, str(error)) from error
        self.info = SessionInfo.model_validate(told)

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Bytes are tokens."""
        return [tuple(ids) for ids in self._backend.encode(texts)["ids"]]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """As `Session.chat`."""
        return str(self._backend.chat([dict(one) for one in messages])["text"])

    def generate(
        self,
        requests: Sequence[Request],
        *,
        full_decode_steps: int | None = None,
        mark_after: int | None = None,
        lane_tokens: int = 1,
    ) -> Generation:
        """As `Session.generate`; marks are on this process's clock, as there."""
        asked = [request.json_value() for request in requests]
        marks: list[tuple[int, float]] = []
        self._backend.marks(lambda number: marks.append((number, time.monotonic())))
        try:
            told = self._backend.generate(asked, full_decode_steps, mark_after, lane_tokens)
            return Generation.model_validate(told).model_copy(update={"marks": tuple(marks)})
        except Coded as error:
            raise RunError(error.code, str(error)) from error

    def inspect(self) -> Inspection:
        """As `Session.inspect`."""
        return Inspection.model_validate(self._backend.inspect())

    def reset_prefix_cache(self) -> None:
        """As `Session.reset_prefix_cache`."""
        self._backend.reset_prefix_cache()

    def caches(self, null_fill: float | None = None, *, whole: bool = False) -> Caches | None:
        """As `Session.caches`."""
        told = self._backend.caches(None if null_fill is None else repr(null_fill), whole)
        return CachesSeen.model_validate(told).caches

    def evidence(self, requests: Sequence[Request], **asked: Any) -> Evidence:
        """As `Session.evidence`."""
        none = ("trace", "state", "watermark", "timeline")
        told = {**dict.fromkeys(none, False), **asked}
        made = self._backend.evidence([request.json_value() for request in requests], **told)
        return Evidence.model_validate(made)

    def routing(self, prompts: Sequence[tuple[int, ...]], seed: int | None = None) -> Routed:
        """As `Session.routing`."""
        asked = [Request(prompt=prompt).json_value() for prompt in prompts]
        return Routed.model_validate(self._backend.routing(asked, seed))

    def code(self) -> dict[str, str]:
        """As `Session.code`."""
        files: dict[str, str] = self._backend.code()["files"]
        return files

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.peak_rss_mib = 1.0


@dataclasses.dataclass(frozen=True)
class LocalEngine(Engine):
    """Starts local sessions and remembers their launches."""

    launches: list[Launch] = dataclasses.field(default_factory=list)

    def start(self, launch: Launch) -> Any:
        """A local session."""
        self.launches.append(launch)
        return LocalSession(launch)


def target(max_model_len: int = 2048, **fake: Any) -> Target:
    """A target of the fake engine; keywords go to the engine."""
    return Target(
        engine="fake",
        role="development",
        max_model_len=max_model_len,
        grid={"batch": [1, 4], "context_tokens": [64]},
        trace={"shows": ["fast::*"], "hides": ["stock::*"]},
        engine_args={"fake": fake},
    )


def setting(folder: Path, *, cell: str | None = None, seed: int = 0, **fake: Any) -> Setting:
    """What a stage gets; keywords go to the fake engine."""
    claim = zoo.claim().model_copy(update={"targets": {"lab": target(**fake)}})
    return Setting(
        claim=claim,
        target_name="lab",
        engine=LocalEngine("fake", "none"),
        checkpoint=None,
        checkpoint_sha256="none",
        source_sha256=lambda: "0" * 64,
        logs=folder / "logs",
        folder=folder / "zoo",
        seed=seed,
        timeout_s=60.0,
        say=lambda text: None,
        cell=cell,
    )
