"""lm-eval as the engine of external evals: it renders the prompts, asks for answers and scores.

The tasks are lm-eval's stock `aime25`, through the chat template; `gsm-symbolic`, with text and
filter of the stock `gsm8k`; and an `mrcr` of our own whose prompt is the file's list of messages.
The model is a function: answers come from an engine session that the caller owns. Loads lm-eval,
and with it torch: import this module on use.
"""

from __future__ import annotations

import importlib.resources
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
from lm_eval import evaluator
from lm_eval.api.metrics import exact_match_hf_evaluate
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.filters.extraction import RegexFilter
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from fasttrack.evals.scorers import SCORERS

Chat = Callable[[Sequence[Mapping[str, str]]], str]
"""Messages to the rendered prompt."""
Asked = Callable[[Sequence[tuple[int, int, str]]], Sequence[str]]
"""(index of the row, number of the sample, prompt) of every request to its answers."""


class _Model(LM):
    """A language model whose answers somebody else gets."""

    def __init__(self, chat: Chat, ask: Asked) -> None:
        super().__init__()
        self._chat = chat
        self._ask = ask

    @property
    def tokenizer_name(self) -> str:
        """Part of cache keys; nothing is cached."""
        return "fasttrack"

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        return self._chat(chat_history)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The samples of one row are the same request again: they are told apart by counting."""
        seen: dict[int, int] = defaultdict(int)
        asked = []
        for request in requests:
            row = request.doc_id
            asked.append((row, seen[row], request.args[0]))
            seen[row] += 1
        return list(self._ask(asked))

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError("external evals generate")

    def loglikelihood_rolling(self, requests: Any) -> Any:
        raise NotImplementedError("external evals generate")


class _Conversations(ConfigurableTask):
    """A task whose prompt is the row's own list of messages."""

    def fewshot_context(self, doc: Any, *_: Any, chat_template: Any = None, **__: Any) -> Any:
        return chat_template(doc["messages"])


def _mrcr() -> dict[str, Any]:
    def scored(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        texts = results[0] if isinstance(results[0], list) else results
        scores = [
            SCORERS["mrcr"].score(doc["random_string_to_prepend"], doc["answer"], text)
            for text in texts
        ]
        return {"exact_match": sum(scores) / len(scores)}

    return {
        "task": "mrcr",
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "process_results": scored,
        "num_fewshot": 0,
        # The name only labels the mean of `process_results`, and is one lm-eval knows offline.
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


def _aime() -> dict[str, Any]:
    path = importlib.resources.files("lm_eval") / "tasks" / "aime" / "aime25.yaml"
    config = dict(load_yaml(str(path)))
    stock = config["process_results"]

    def scored(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        """avg@k: the stock task scores the first answer only."""
        texts = results[0] if isinstance(results[0], list) else results
        return {"exact_match": sum(stock(doc, [t])["exact_match"] for t in texts) / len(texts)}

    for key in ("dataset_path", "training_split", "fewshot_split", "tag"):
        config.pop(key, None)
    return {**config, "process_results": scored}


def _gsm_symbolic() -> dict[str, Any]:
    """Text and last-number filter of the stock `gsm8k`, without its examples."""
    path = importlib.resources.files("lm_eval") / "tasks" / "gsm8k" / "gsm8k.yaml"
    config = dict(load_yaml(str(path)))
    (stock,) = [one for one in config["filter_list"] if one["name"] == "flexible-extract"]
    (extract,) = [
        RegexFilter(**{key: value for key, value in step.items() if key != "function"})
        for step in stock["filter"]
        if step["function"] == "regex"
    ]
    (compared,) = config["metric_list"]
    options = {key: compared[key] for key in ("regexes_to_ignore", "ignore_case")}

    def scored(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, float]:
        texts = results[0] if isinstance(results[0], list) else results
        (given,) = extract.apply([texts], [doc])
        wanted = [doc["answer"]] * len(given)
        made = exact_match_hf_evaluate(predictions=given, references=wanted, **options)
        return {"exact_match": float(made["exact_match"])}

    for key in ("dataset_path", "dataset_name", "training_split", "fewshot_split", "tag"):
        config.pop(key, None)
    return {**config, "task": "gsm-symbolic", "num_fewshot": 0, "process_results": scored}


def evaluate(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    samples: int,
    answer_tokens: int,
    chat: Chat,
    ask: Asked,
) -> list[float]:
    """Run an eval; returns lm-eval's score of every row, the mean over its samples."""
    config = {"aime25": _aime, "gsm-symbolic": _gsm_symbolic, "mrcr": _mrcr}[name]()
    kind = _Conversations if name == "mrcr" else ConfigurableTask
    task = kind(
        config={
            **config,
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(list(rows))},
            "repeats": samples,
            "filter_list": [
                {"name": "all", "filter": [{"function": "take_first_k", "k": samples}]}
            ],
            # The end of an answer is the model's own: `Question:` may occur in its reasoning.
            "generation_kwargs": {"until": [], "max_gen_toks": answer_tokens},
        }
    )
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    made = evaluator.simple_evaluate(
        model=_Model(chat, ask),
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True,
        fewshot_as_multiturn=False,
        bootstrap_iters=0,
        log_samples=True,
    )
    logged = sorted(made["samples"][name], key=lambda one: int(one["doc_id"]))
    return [float(one["exact_match"]) for one in logged]
