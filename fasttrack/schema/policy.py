"""What maintainers demand of every claim: limits, levels, required stages and features.

Read by rules and gate. The claim's own nouns are in `claim`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from fasttrack.schema.claim import Frozen, StaticCode, Tier


class IsolationPolicy(Frozen):
    """What a change may do outside its own model."""

    exemptible: tuple[StaticCode, ...] = ("ISO-IMPORT", "ISO-ENV", "ISO-TORCH")
    """Findings of the source scan that a claim may declare."""
    allowed_paths: tuple[str, ...] = ()
    """Globs of protected files that a change may touch all the same."""


class NumericsPolicy(Frozen):
    """Limits on a candidate's error as a multiple of the stock op's own error."""

    ratio_rms: float = Field(default=1.25, gt=0)
    ratio_q999: float = Field(default=1.5, gt=0)
    ratio_worst_slice_rms: float = Field(default=1.5, gt=0)
    ratio_max: float = Field(default=2.0, gt=0)
    bias_ratio: float = Field(default=2.0, gt=0)
    hard_cap: float = Field(default=8.0, gt=0)
    min_seeds: int = Field(default=3, ge=2)
    min_repeats: int = Field(default=300, ge=1)
    """Bitwise repeats of a cell, except at tier `smoke`: 300 find a fault of 1 % with 95 %."""
    stock_rms_limit: float = Field(default=0.25, gt=0)
    """Stock's own RMS error, as a share of the output's size, above which reference and stock are
    taken to compute different things."""


class SpeedPolicy(Frozen):
    """How a speed cell is decided."""

    level: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided level of each cell's test, over all looks together."""
    look_pairs: tuple[Annotated[int, Field(ge=2)], ...] = Field(default=(4, 8, 12), min_length=1)
    """Numbers of valid pairs after which a cell is looked at; a tier may end before the last."""
    min_floor_percent: float = Field(default=0.5, ge=0)
    """No difference smaller than this counts, whatever the noise."""
    equivalence_margin_percent: float = Field(default=3.0, ge=0)
    max_excluded_share: float = Field(default=0.25, ge=0, le=1)
    max_token_evenness: float = Field(default=0.97, gt=0, le=1)
    """Of the prompts' token frequencies, above which they are taken for random tokens."""
    min_routing_contrast: float = Field(default=1.5, gt=0)
    """How much farther than random tokens from each other the prompts of a mixture-of-experts model
    must lie from random tokens in their choice of experts."""
    acceptance_margin: float = Field(default=0.02, ge=0, le=1)
    """Difference between the arms' accepted shares of draft tokens that counts as none."""
    cache_margin: float = Field(default=0.02, ge=0, le=1)
    """Difference between the arms' prefix cache hit rates that counts as none, in agent traffic."""
    max_foreign_cpu_share: float = Field(default=0.1, ge=0, le=1)
    """Of the machine's CPU time, what processes of others may use while evidence is measured; runs
    of the role `development` only tell it."""

    @property
    def look_level(self) -> float:
        """One-sided level of each single look (Bonferroni over all that may be made)."""
        return self.level / len(self.look_pairs)

    @model_validator(mode="after")
    def _looks_in_order(self) -> SpeedPolicy:
        if list(self.look_pairs) != sorted(set(self.look_pairs)):
            raise ValueError("look_pairs must grow from look to look")
        return self


class QualityPolicy(Frozen):
    """How evals are decided."""

    accuracy_margin: float = Field(default=0.05, gt=0)
    alarm_level: float = Field(default=0.05, gt=0, lt=0.5)
    """Level, over all evals together, of the test that more right answers are lost than won."""
    length_margin: float = Field(default=0.03, gt=0)
    """Relative change of the mean answer length that counts as none."""
    length_share_margin: float = Field(default=0.01, gt=0)
    """Further share of answers that may end at the token limit."""
    replay_ratio: float = Field(default=2.0, ge=0)
    """Change over a replayed answer, as a multiple of stock's in another composition."""
    replay_slack: float = Field(default=1e-5, ge=0)
    """Absolute allowance of a typical answer's mean change, nats: five units in the last place of
    an FP32 logit between 16 and 32."""
    tie_slack: float = Field(default=0.1, ge=0)
    """Change at one token that a tie inside the model, as of two experts, may cause, nats."""
    tie_share: float = Field(default=0.05, ge=0, le=1)
    """Share of tokens with such a change."""
    divergence_ratio: float = Field(default=2.0, ge=0)
    """Candidate's divergence from base, as a multiple of the stock-stock control's."""
    parting_level: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of the one-sided Fisher test that more answers part from base than stock's own do."""

    divergence_slack: float = Field(default=1e-3, ge=0)
    """Absolute allowance, nats, of the typical answer's largest change of a log-probability."""


class GatePolicy(Frozen):
    """What the gate demands of a change, beside what it demands of its evidence."""

    guarded_paths: tuple[str, ...] = ("optimizations/**",)
    """Files that may change only under a claim whose scope covers them."""
    companion_paths: tuple[str, ...] = ("CHANGELOG.md", "README.md", "docs/**")
    """Files outside every scope that may change together with an optimization."""
    reproducers: int = Field(default=0, ge=0)
    """Independent reproducers that must have signed."""
    waivable: tuple[str, ...] = ("GAT-001", "GAT-003", "GAT-005", "GAT-008", "GAT-013", "GAT-017")
    """Demands that a maintainer's signed waiver may set aside."""


class Policy(Frozen):
    """What maintainers demand. Read from the protected branch by the gate, never from a PR."""

    schema_: Literal["fasttrack.policy/v1"] = Field(default="fasttrack.policy/v1", alias="schema")
    version: int = 1
    isolation: IsolationPolicy = IsolationPolicy()
    numerics: NumericsPolicy = NumericsPolicy()
    speed: SpeedPolicy = SpeedPolicy()
    quality: QualityPolicy = QualityPolicy()
    required_stages: tuple[str, ...] = (
        *("isolation", "kernels", "path", "features", "evals", "perf"),
    )
    required_features: tuple[str, ...] = (
        "abort",
        "batch_edges",
        "chunked_prefill",
        "finite",
        "full_context",
        "logprobs",
        "parallel_samples",
        "penalties",
        "preemption",
        "prefix_cache",
        "sampling",
        "seeds",
        "stop_strings",
        "streaming",
        "structured_output",
        "token_bias",
    )
    """Features that a target must show to be kept, or its claim refuse. The others, which need more
    of an engine than every one offers, count where base offers them."""
    minimum_tier: Tier = Tier.STANDARD
    admissible_roles: tuple[str, ...] = ("evidence",)
    gate: GatePolicy = GatePolicy()

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        populate_by_name=True,
    )
