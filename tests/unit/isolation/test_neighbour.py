"""Protects the isolation stage at run time: a neighbour that changes with the plugin is seen to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import local_engine
import pytest

from fasttrack import isolation
from fasttrack.engine.base import Generation
from fasttrack.engine.setting import Setting
from fasttrack.schema import IsolationRecord


def holds(record: IsolationRecord) -> bool:
    """Whether all checks hold."""
    return all(check.holds for check in record.checks)


@dataclasses.dataclass(frozen=True)
class TwoFaces(local_engine.LocalEngine):
    """An engine on which an installed plugin shows."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    def start(self, launch: Any) -> Any:
        """A session that differs when a plugin is there."""
        session = super().start(launch)
        session.info = session.info.model_copy(
            update={"state": {"ops": "a1", "architectures": "Llama,Qwen"}}
        )
        if launch.plugin is not None:
            session.info = session.info.model_copy(
                update={"state": {**session.info.state, **self.changes.get("state", {})}}
            )
            if "answers" in self.changes:
                honest = session.generate
                session.generate = lambda requests: self.changes["answers"](honest(requests))
        return session


def neighbour(folder: Path, **changes: Any) -> tuple[IsolationRecord, Setting]:
    """The neighbour check on such an engine."""
    plain = local_engine.setting(folder)
    plugin = plain.claim.plugin.model_copy(update={"worker_extension": "zoo.Extension"})
    chosen = dataclasses.replace(
        plain,
        claim=plain.claim.model_copy(update={"plugin": plugin}),
        engine=TwoFaces("fake", "none", changes=changes),
    )
    (record,) = isolation.run(chosen, {"check": "neighbour"})
    assert isinstance(record, IsolationRecord)
    return record, chosen


def test_an_honest_plugin_changes_nothing(tmp_path: Path) -> None:
    record, chosen = neighbour(tmp_path)
    assert holds(record)
    assert {check.name for check in record.checks} == {"tokens_equal", "ops", "architectures"}
    without, with_plugin = chosen.engine.launches  # type: ignore[attr-defined]
    assert without.plugin is None and with_plugin.plugin is not None
    # Same unrelated model, switch off, and no evidence asked of a model that keeps none.
    for launch in (without, with_plugin):
        assert (launch.arm, launch.checkpoint, dict(launch.additional_config)) == ("base", None, {})
    assert with_plugin.plugin.worker_extension is None


def test_the_claimed_architecture_may_be_added(tmp_path: Path) -> None:
    own = {"architectures": "Llama,Qwen,ZooForCausalLM"}
    assert holds(neighbour(tmp_path, state=own)[0])


def other_tokens(made: Generation) -> Generation:
    """The first answer is another one."""
    first = made.answers[0].model_copy(update={"token_ids": (1,)})
    return made.model_copy(update={"answers": (first, *made.answers[1:])})


def one_lost(made: Generation) -> Generation:
    """The last answer is missing."""
    return made.model_copy(update={"answers": made.answers[:-1]})


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"state": {"ops": "b2"}}, "ops"),
        ({"state": {"architectures": "Llama,Mine"}}, "architectures"),
        ({"state": {"architectures": "Llama,Qwen,Other"}}, "architectures"),
        ({"state": {"extra": "set"}}, "extra"),
        ({"answers": other_tokens}, "tokens_equal"),
        ({"answers": one_lost}, "tokens_equal"),
    ],
    ids=["ops", "arch_lost", "arch_added", "new_state", "tokens", "answer_lost"],
)
def test_a_change_is_named(tmp_path: Path, changes: dict[str, Any], broken: str) -> None:
    record, _ = neighbour(tmp_path, **changes)
    assert [check.name for check in record.checks if not check.holds] == [broken]
