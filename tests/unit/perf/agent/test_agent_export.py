"""Protects the way from aiperf's files to a verdict, on files of a real run: each request once,
times from the packets, and what aiperf keeps quiet about is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.perf.agent import export, traces
from fasttrack.perf.agent.measure import measure, tpot_ms
from fasttrack.rules import agent
from fasttrack.schema import AgentRecord, AgentTurn, State, Verdict

RECORDED = Path(__file__).with_name("recorded")
SERVER = {
    "requests": 19,
    "prompt_tokens": 11831,
    "generated_tokens": 408,
    "cached_tokens": 6528,
}
"""What the server's own counters said of that run."""
CELL = "agent/concurrency=1"
Spoil = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def spoilt(folder: Path, change: Spoil, name: str = export.RAW) -> Path:
    """The recorded files with the lines of one of them changed."""
    out = shutil.copytree(RECORDED, folder / "out")
    lines = [json.loads(line) for line in (out / name).read_text().splitlines()]
    (out / name).write_text("".join(json.dumps(one) + "\n" for one in change(lines)))
    return out


def judged(turns: tuple[AgentTurn, ...], server: dict[str, int] = SERVER) -> Verdict:
    """The verdict on a run whose candidate replayed these turns, and base the honest ones."""
    honest = export.turns(RECORDED)
    planned = traces.load(zoo.claim(), "lab", RECORDED).trees
    records = []
    for record in zoo.agent_run():
        if isinstance(record, AgentRecord):
            mine = record.arm == "candidate"
            told = {"turns": turns if mine else honest, "counters": server if mine else SERVER}
            record = record.model_copy(update={"planned": planned, **told})
        records.append(record)
    return zoo.found(agent.judge(zoo.case(records, zoo.claim(agent={}))), CELL)


def test_a_real_replay_counts_to_the_last_token() -> None:
    turns = export.turns(RECORDED)
    assert zoo.totals(turns) == SERVER
    assert [turn.start_ms for turn in turns] == sorted(turn.start_ms for turn in turns)
    assert turns[0].start_ms == 0
    assert {turn.depth for turn in turns} == {0, 1}
    assert len({(turn.conversation, turn.turn) for turn in turns}) == 19
    assert len({turn.prompt_sha256 for turn in turns}) == 19
    assert judged(turns).state is State.PASS


def test_token_times_are_those_of_the_packets_and_agree_with_the_clients() -> None:
    for turn in export.turns(RECORDED):
        assert turn.arrivals[0][0] == pytest.approx(turn.ttft_ms)
        assert tpot_ms(turn) == pytest.approx(turn.itl_ms, rel=1e-3)
        assert turn.arrivals[-1] == (pytest.approx(turn.latency_ms), turn.output_tokens)


def test_a_real_replay_has_numbers() -> None:
    made = measure(zoo.replay("base", "one", 0, 0, export.turns(RECORDED)))
    assert (made.requests, made.tpots) == (19, 19)
    assert made.hit_rate == pytest.approx(6528 / 11831)
    assert made.interactivity_p90 < made.interactivity_p50
    assert made.ttft_p50_ms < made.ttft_p90_ms


def test_text_that_cannot_be_seen_moves_no_token(tmp_path: Path) -> None:
    """A small model emits halves of characters: the client sees its first text late."""

    def unseen(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        text = json.dumps(lines).replace('\\"content\\":\\"', '\\"content\\":\\"\\",\\"was\\":\\"')
        return list(json.loads(text))

    turns = export.turns(spoilt(tmp_path, unseen))
    assert [turn.arrivals for turn in turns] == [t.arrivals for t in export.turns(RECORDED)]


def refused(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last request is too long for the server."""
    error = {"code": 400, "type": "Bad Request", "message": "maximum context length is 2048"}
    last = {"status": 400, "responses": [], "error": error}
    return [*lines[:-1], lines[-1] | last]


def overflown(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As aiperf marks a request that it leaves out of its numbers."""
    metadata = lines[-1]["metadata"] | {"context_overflow_skip": True}
    return [*lines[:-1], lines[-1] | {"metadata": metadata, "status": 400, "responses": []}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (refused, "18 of 19 requests were answered: 1x HTTP 400: maximum context length"),
        (overflown, "1x HTTP 400: it did not fit the context; the client ended with status 0"),
        (lambda lines: lines[:-1], "18 of 19 requests were answered"),
        (lambda lines: [*lines, lines[-1]], "20 of 19 requests"),
        (lambda lines: [], "0 of 19 requests"),
    ],
)
def test_what_the_client_swallows_is_found(tmp_path: Path, change: Spoil, says: str) -> None:
    told = judged(export.turns(spoilt(tmp_path, change)))
    assert (told.state, told.reason) == (State.INVALID, "AGT-REQUESTS")
    assert says in told.detail


def test_hits_that_only_one_arm_has_are_found(tmp_path: Path) -> None:
    def cold(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        text = re.sub(r'cached_tokens\\":\d+', r'cached_tokens\\":0', json.dumps(lines))
        return list(json.loads(text))

    turns = export.turns(spoilt(tmp_path, cold))
    assert zoo.totals(turns)["cached_tokens"] < SERVER["cached_tokens"]
    assert judged(turns).reason == "AGT-COUNTS"
    assert judged(turns, zoo.totals(turns)).reason == "AGT-CACHE"


def test_counts_that_differ_from_the_servers_are_found() -> None:
    told = judged(export.turns(RECORDED), SERVER | {"prompt_tokens": 11000})
    assert told.reason == "AGT-COUNTS"
    assert "the client counts 11831, the server 11000" in told.detail


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (export.RAW, None, "there is no profile_export_raw.jsonl"),
        (export.METRICS, None, "there is no profile_export.jsonl"),
        (export.RAW, "{\n", "line 1 is no JSON object"),
        (export.RAW, "{}\n", "KeyError"),
        (export.METRICS, "[1]\n", "is no JSON object"),
    ],
)
def test_files_that_cannot_be_read_say_so(
    tmp_path: Path, file: str, content: str | None, says: str
) -> None:
    out = shutil.copytree(RECORDED, tmp_path / "out")
    if content is None:
        (out / file).unlink()
    else:
        (out / file).write_text(content)
    with pytest.raises(export.Unreadable, match=says):
        export.turns(out)
