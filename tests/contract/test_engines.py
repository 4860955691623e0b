"""Protects every stage from engines that differ: what each engine of the registry must do alike.

A new engine is tested by being registered. The real one boots its small unrelated model, the one of
the isolation stage, so that no checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fasttrack import engine as engines
from fasttrack.engine.base import Engine, Generation, Launch, Request, Sampling, Session
from fasttrack.errors import EXPLANATIONS, EnvironmentUnmet, RunError
from fasttrack.schema import Target

SIMULATED = {"fake"}
GRID = {"batch": [1], "context_tokens": [16]}
PROMPTS = [tuple((11 * i + 5 * j) % 250 for j in range(4 + 9 * i)) for i in range(4)]


def names() -> list[Any]:
    """The registry; engines that need more than this package carry a marker."""
    return [
        pytest.param(name, marks=[] if name in SIMULATED else [pytest.mark.engine])
        for name in sorted(engines.registry())
    ]


def launch(name: str, folder: Path) -> Launch:
    """A small session of the engine's own unrelated model."""
    target = Target(engine=name, role="development", max_model_len=128, grid=GRID)
    return Launch(
        session=f"contract-{name}",
        arm="base",
        target=target,
        additional_config={},
        log=folder / "engine.log",
        start_timeout_s=240.0,
        call_timeout_s=120.0,
    )


@pytest.fixture(scope="module", params=names())
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return engines.get(request.param)


@pytest.fixture(scope="module")
def session(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One running session per engine."""
    started = engine.start(launch(engine.name, tmp_path_factory.mktemp(engine.name)))
    with started:
        yield started
    assert started.peak_rss_mib is not None and started.peak_rss_mib > 0
    assert not started._child.alive


def ask(session: Session, prompts: Any = PROMPTS, **sampling: Any) -> Generation:
    """Six greedy tokens for each prompt, at once."""
    asked = Sampling(**{"max_tokens": 6, **sampling})
    return session.generate([Request(prompt=prompt, sampling=asked) for prompt in prompts])


def test_it_names_itself(engine: Engine) -> None:
    assert engines.get(engine.name) is engine
    engine.check()


def test_it_tells_what_it_is(session: Session) -> None:
    info = session.info
    assert info.switch is None
    assert {"engine", "max_model_len", "max_num_batched_tokens"} <= set(info.fingerprint)


def test_it_can_be_inspected_and_stays_the_same(session: Session) -> None:
    groups = {"code", "objects", "operators", "architectures", "environment", "torch", "hooks"}
    ask(session)
    first = session.inspect().facts
    assert groups <= set(first) and all(first[group] for group in groups)
    ask(session)
    second = session.inspect().facts
    # An engine may load more of itself while it works; what was there does not move.
    assert {g: {k: second[g].get(k) for k in first[g]} for g in groups} == {
        g: dict(first[g]) for g in groups
    }


def test_answers_come_in_order_and_whole(session: Session) -> None:
    together = ask(session)
    assert [len(answer.token_ids) for answer in together.answers] == [6] * len(PROMPTS)
    assert {answer.finish_reason for answer in together.answers} == {"length"}
    alone = [ask(session, [prompt]).answers[0].token_ids for prompt in PROMPTS]
    assert [answer.token_ids for answer in together.answers] == alone


def test_steps_account_for_every_token(session: Session) -> None:
    made = ask(session, [(7, *prompt) for prompt in PROMPTS])
    cached = sum(answer.cached_tokens for answer in made.answers)
    prompt_tokens = sum(len(prompt) + 1 for prompt in PROMPTS)
    assert sum(step.prefill_tokens for step in made.steps) == prompt_tokens - cached
    # The first token of an answer comes out of its last prefill step.
    assert sum(step.decode_tokens for step in made.steps) == 5 * len(PROMPTS)
    assert all(step.duration_s > 0 for step in made.steps)
    starts = [step.start_s for step in made.steps]
    assert starts == sorted(starts)


def test_it_stops_after_so_many_full_decode_steps(session: Session) -> None:
    asked = [Request(prompt=(9, *p), sampling=Sampling(max_tokens=60)) for p in PROMPTS]
    made = session.generate(asked, full_decode_steps=7)
    full = [s.decode_tokens == len(PROMPTS) and not s.prefill_tokens for s in made.steps]
    assert sum(full) == 7 and full[-1]
    assert len(made.answers) == len(PROMPTS)
    # What was given up leaves nothing behind.
    assert len(ask(session).answers) == len(PROMPTS)


def test_a_request_out_of_time_is_given_up_and_its_neighbour_goes_on(session: Session) -> None:
    asked = Sampling(max_tokens=24)
    late = Request(prompt=PROMPTS[1], sampling=asked, abort_after_s=0.0)
    one, other = session.generate([late, Request(prompt=PROMPTS[2], sampling=asked)]).answers
    assert one.finish_reason == "aborted" and len(one.token_ids) < 24
    assert other.finish_reason == "length" and len(other.token_ids) == 24
    assert len(ask(session).answers) == len(PROMPTS)


def test_it_is_seen_at_work_without_being_changed(session: Session) -> None:
    asked = [Request(prompt=(3, *p), sampling=Sampling(max_tokens=6)) for p in PROMPTS[:2]]
    plain = session.generate(asked)
    once = Sampling(max_tokens=1)
    late = [Request(prompt=(n, 1, 2), sampling=once, arrive_after=2 * n + 1) for n in range(2)]
    seen = session.evidence([*asked, *late], trace=True, state=True)
    made = seen.generation
    if session.info.fingerprint["engine"] not in SIMULATED:
        assert [a.token_ids for a in made.answers[:2]] == [a.token_ids for a in plain.answers]
    assert len(seen.trace) == len(made.steps)
    assert all(sum(names.values()) for names in seen.trace)
    # The late requests prefill beside the others' decodes, each in a step of its own.
    mixed = [s for s in made.steps if s.decode_tokens and s.prefill_tokens]
    assert len(mixed) >= len(late)
    assert bool(seen.problem) != (len(seen.state) == len(made.steps))
    assert not any(step.foreign for step in seen.state)
    # No entry is named, so none is wrapped; what follows is as before.
    assert seen.entry_calls is None
    assert len(ask(session).answers) == len(PROMPTS)
    assert all(len(digest) == 64 for digest in session.code())


def test_log_probabilities_one_per_token(session: Session) -> None:
    for answer in ask(session, logprobs=2).answers:
        assert len(answer.logprobs) == len(answer.gaps) == len(answer.listed) == 6
        assert all(value is not None and value <= 1e-6 for value in answer.logprobs)
        assert all(value is not None and value >= 0 for value in answer.gaps)
        assert min(answer.listed) >= 2


def test_seeds_repeat_and_differ(session: Session) -> None:
    def draw(seed: int) -> list[tuple[int, ...]]:
        made = ask(session, temperature=1.0, seed=seed)
        return [answer.token_ids for answer in made.answers]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_request_it_cannot_run_is_an_error_and_not_the_end(session: Session) -> None:
    with pytest.raises(RunError) as caught:
        ask(session, [PROMPTS[0], tuple(range(1, 250)) * 8])
    assert caught.value.code == "ENG-006"
    # The good request beside the bad one must not run on into the next call.
    made = ask(session)
    assert len(made.answers) == len(PROMPTS)
    assert sum(step.decode_tokens for step in made.steps) == 5 * len(PROMPTS)


def test_an_unknown_engine_is_an_unmet_environment() -> None:
    with pytest.raises(EnvironmentUnmet) as caught:
        engines.get("warp")
    assert caught.value.code == "ENV-002"
    assert "fake" in caught.value.cause


def test_a_missing_package_names_the_extra() -> None:
    engine = Engine(name="x", module="x", requires=(("no_such_package", "cpu"),))
    with pytest.raises(EnvironmentUnmet) as caught:
        engine.check()
    assert caught.value.code in EXPLANATIONS and caught.value.code == "ENV-001"
    assert "fasttrack[cpu]" in caught.value.next_step
