"""With the switch off everything is stock.

Boots an unrelated model with and without the plugin and compares tokens, registered ops,
architectures, torch flags and the environment.
"""

from __future__ import annotations

from fasttrack.engine.base import Launch, Request, Sampling, SessionInfo
from fasttrack.engine.setting import Setting
from fasttrack.schema import Check, IsolationRecord, Record


def run(setting: Setting) -> list[Record]:
    """The record of the subject `neighbour`."""
    return [_neighbour(setting)]


def _neighbour(setting: Setting) -> IsolationRecord:
    """The same unrelated model twice: without and with the plugin, switch off."""
    prompts = [tuple((7 * i + 3 * j) % 256 for j in range(5 + 11 * i)) for i in range(4)]
    requests = [Request(prompt=p, sampling=Sampling(max_tokens=8)) for p in prompts]

    def observe(name: str, with_plugin: bool) -> tuple[SessionInfo, list[tuple[int, ...]]]:
        setting.say(f"unrelated model {name}")
        launch = Launch(
            session=f"neighbour-{name}",
            arm="base",
            target=setting.target,
            additional_config={},
            log=setting.logs / f"neighbour-{name}.log",
            plugin=setting.claim.plugin.model_copy(update={"worker_extension": None})
            if with_plugin
            else None,
            call_timeout_s=setting.timeout_s,
            start_timeout_s=setting.timeout_s,
        )
        with setting.engine.start(launch) as session:
            generation = session.generate(requests)
            return session.info, [answer.token_ids for answer in generation.answers]

    stock, stock_tokens = observe("without plugin", False)
    mine, my_tokens = observe("with plugin", True)
    own = set(setting.claim.scope.models)
    checks = [
        Check(
            name="tokens_equal",
            relation="equal",
            observed=sum(a == b for a, b in zip(stock_tokens, my_tokens, strict=False)),
            bound=len(prompts),
        )
    ]
    for key in sorted({*stock.state, *mine.state}):
        before, after = stock.state.get(key), mine.state.get(key)
        if key == "architectures":
            after = ",".join(sorted(set((after or "").split(",")) - own))
            before = ",".join(sorted(set((before or "").split(",")) - own))
        checks.append(Check(name=key, relation="equal", observed=after, bound=before))
    return IsolationRecord(subject="neighbour", checks=checks)
