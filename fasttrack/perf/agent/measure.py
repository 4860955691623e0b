"""What a replay of agent traffic measures, under the names that public benchmarks use.

TTFT is the time to the first answer token, TPOT the mean time between the tokens of one answer;
token times come from the packets of the stream. Interactivity, tokens per second and user, is
1000 / TPOT in milliseconds, and its percentiles are those of TPOT: **P90 interactivity is the slow
tail**, 1000 / P90(TPOT), as InferenceX publishes it. aiperf's own p90 of the rate is the other
tail, which hardly moves under load. Leaf, read by the rule and the report; never averages requests
of different sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack import stats
from fasttrack.schema import AgentRecord, AgentTurn

STYLE = "AgentX-style"
"""What a replay of any traces but the official corpus is called."""
OFFICIAL: frozenset[str] = frozenset()
"""Digests of the official corpus, as `traces` forms them; none is known to this release."""


@dataclass(frozen=True)
class Measured:
    """One replay. Times are milliseconds."""

    requests: int
    tpots: int
    """Requests whose answer has two tokens or more."""
    ttft_p50_ms: float
    ttft_p90_ms: float
    tpot_p50_ms: float
    tpot_p90_ms: float
    hit_rate: float
    """Share of prompt tokens that the server found in its prefix cache."""
    output_tokens_per_s: float
    """Over all answers, from the first request to the last token."""

    @property
    def interactivity_p50(self) -> float:
        """Tokens per second and user."""
        return 1000 / self.tpot_p50_ms

    @property
    def interactivity_p90(self) -> float:
        """The slow tail: nine of ten requests are at least as fast."""
        return 1000 / self.tpot_p90_ms


def label(traces_sha256: str) -> str:
    """What to call the traffic. Not even the corpus makes a replay of ours a submission."""
    if traces_sha256 in OFFICIAL:
        return "AgentX corpus, no AgentX submission"
    return STYLE


def tpot_ms(turn: AgentTurn) -> float | None:
    """Mean time between the tokens of one answer; None for fewer than two packets."""
    if len(turn.arrivals) < 2:
        return None
    (began, first), (ended, last) = turn.arrivals[0], turn.arrivals[-1]
    # The first packet may bring several tokens: they are no gaps.
    return (ended - began) / (last - first) if last > first else None


def measure(record: AgentRecord) -> Measured:
    """The numbers of a replay that counts; raises `ValueError` for an empty one."""
    first = [turn.arrivals[0][0] for turn in record.turns if turn.arrivals]
    tpots = [ms for turn in record.turns if (ms := tpot_ms(turn)) is not None]
    ends = [turn.start_ms + turn.arrivals[-1][0] for turn in record.turns if turn.arrivals]
    produced = _sum([turn.output_tokens for turn in record.turns])
    return Measured(
        requests=len(record.turns),
        tpots=len(tpots),
        ttft_p50_ms=stats.quantile(first, 0.5),
        ttft_p90_ms=stats.quantile(first, 0.9),
        tpot_p50_ms=stats.quantile(tpots, 0.5),
        tpot_p90_ms=stats.quantile(tpots, 0.9),
        hit_rate=hit_rate([record]),
        output_tokens_per_s=1000 * produced / max(ends),
    )


def hit_rate(records: Sequence[AgentRecord]) -> float:
    """Cached share of the prompt tokens of all requests."""
    turns = [turn for record in records for turn in record.turns]
    prompts = _sum([turn.input_tokens for turn in turns])
    return _sum([turn.cached_tokens for turn in turns]) / prompts if prompts else 0.0


def _sum(values: Sequence[int | None]) -> int:
    return sum(value or 0 for value in values)
