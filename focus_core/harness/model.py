"""A routed model for the Language Model Evaluation Harness (https://github.com/EleutherAI/lm-evaluation-harness).

`FocusLM` is registered as "focus". The harness has no plug-ins; start its command line through this module, so that it
knows the name:

    python -m focus_core.harness.model run --model focus --model_args pretrained=default,top_k=1 --tasks piqa
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from tqdm import tqdm
from transformers import DynamicCache

from focus_core.errors import FocusError
from focus_core.evaluation.exposure import Exposure, budget_exposure, exposure
from focus_core.models import load_model
from focus_core.routing.balance import BALANCES
from focus_core.routing.cache import cache_argument
from focus_core.routing.layer import LayerRouting, heads_in_groups
from focus_core.routing.model import FocusModel, Mode, retrofit
from focus_core.routing.narrow.reading import Reading

Request = tuple[tuple[str, str] | None, list[int], list[int]]
"""A request of the harness: (context, continuation) as text, and the tokens of both."""

Answer = tuple[float, bool]
"""Log-likelihood of a continuation, and whether it is the greedy one."""


_HFLM: Any = HFLM  # the harness's decorator hides its type from checkers


class FocusLM(_HFLM):
    """A model with routers under one routing, as a model of the harness.

    With `batch_size=1` a request reuses keys, values and routing of the tokens that it shares with the one before. The
    choices of a question and a few-shot prompt are shared in this way. With more, requests are padded into batches.
    Both give the same scores up to float error. Sequence Sinkhorn needs a whole text at once, so its requests are
    always padded.

    Attributes:
        exposures: pairs of the longest request with a context, by context text; of prompt and answer in generation.
    """

    def __init__(
        self,
        pretrained: str | FocusModel = "default",
        *,
        tokenizer: Any = None,
        routers: str | None = None,
        untrained: bool = False,
        mode: Mode = "hard",
        top_k: int | None = None,
        balance: str | None = None,
        window: int | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | str | None = 1,
        **kwargs: Any,
    ) -> None:
        """Load a model, or use a loaded one.

        Args:
            pretrained: a name that `focus_core.load_model` accepts, or a model with routers (then give its tokenizer).
            tokenizer: of a model with routers.
            routers: folder of trained routers; without it, those shipped for the model.
            untrained: use untrained routers (seed 0).
            mode: "off" (the untouched model), "soft" or "hard".
            top_k: k of hard routing; the routers' own when None.
            balance: "calibrated" or "sequence"; the routers' own when None.
            window: w; the routers' own when None.
            device: such as "cuda"; the CPU when None.
            dtype: of the weights, such as "bfloat16".
            batch_size: requests per forward pass.
            kwargs: HFLM's own, such as max_length.

        Raises:
            FocusError: model, routers or settings that do not fit.
        """
        if isinstance(pretrained, str):
            focus, tokenizer = _load(pretrained, routers, untrained or mode == "off", device or "cpu", dtype)
        else:
            focus = pretrained
        super().__init__(
            pretrained=focus.model,  # type: ignore[arg-type]
            tokenizer=tokenizer,
            backend="causal",
            batch_size=batch_size,
            **kwargs,
        )
        given = {"top_k": top_k, "balance": balance, "window": window}
        self.focus = focus
        self.mode: Mode = mode
        self.exposures: dict[str, Exposure] = {}
        self.on_progress: Callable[[float], None] | None = None  # told the share of the requests that is done
        self.changes = {name: value for name, value in given.items() if value is not None}
        with focus.routing(mode, **self.changes):
            self.routing_config = focus.current.config
        self._seen: dict[int, Tensor] = {}
        self._readings: dict[int, Reading] = {}  # of narrow groups, which have budgets and no memberships
        self._forget()

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._cache: Any = None
        self._members: dict[int, Tensor] = {}

    @contextmanager
    def _routed(self) -> Iterator[None]:
        """Routing in force; the groups of every new token as key and as query are collected in `_seen`."""

        def collect(routing: LayerRouting) -> None:
            if routing.router.from_keys:
                self._readings[routing.layer] = routing.reading()
                return
            heads = routing.router.num_heads
            new = torch.cat([heads_in_groups(side, heads) for side in routing.membership()], -1)
            seen = self._seen.get(routing.layer)
            self._seen[routing.layer] = new if seen is None else torch.cat([seen, new], 1)

        observer = collect if self.mode == "hard" else None
        with torch.no_grad(), self.focus.routing(self.mode, **self.changes), self.focus.observe(observer):
            yield

    def _take_seen(self) -> dict[int, Tensor]:
        seen, self._seen = self._seen, {}
        return seen

    def _one_by_one(self) -> bool:
        config = self.model.config.get_text_config()
        windowed = getattr(config, "sliding_window", None) is not None
        looks_ahead = self.mode != "off" and not BALANCES[self.routing_config.balance].causal
        return self.batch_size == 1 and not windowed and not looks_ahead

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Answer]:
        """As HFLM, with `on_progress` in place of its bars."""
        return super().loglikelihood(requests, disable_tqdm or self.on_progress is not None)

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Answer]:
        """Answers in the order of the requests; contexts beyond the limit lose their first tokens, as in HFLM."""
        rows = [(context + continuation)[-(self.max_length + 1) :] for _, context, continuation in requests]
        one_by_one = self._one_by_one()
        if one_by_one:
            by_context: dict[tuple[int, ...], list[int]] = {}
            for index, (row, (_, _, continuation)) in enumerate(zip(rows, requests)):
                by_context.setdefault(tuple(row[: len(row) - len(continuation)]), []).append(index)
            groups = [by_context[context] for context in sorted(by_context)]  # neighbours share the most
        else:
            order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
            size = override_bs or (self.batch_size if isinstance(self.batch_size, int) else 1)
            groups = [order[start : start + size] for start in range(0, len(order), size)]
        answers: dict[int, Answer] = {}
        with tqdm(total=len(rows), disable=disable_tqdm, desc="Log-likelihoods") as bar, self._routed():
            for group in groups:
                sizes = [len(requests[index][2]) for index in group]
                score = self._score_shared if one_by_one else self._score_padded
                found, exposures = score([rows[index] for index in group], sizes)
                for index, answer, pairs in zip(group, found, exposures):
                    answers[index] = answer
                    if (text := requests[index][0]) is not None:
                        self._note(text[0], pairs)
                        self.cache_hook.add_partial("loglikelihood", text, answer)
                bar.update(len(group))
                if self.on_progress is not None:
                    self.on_progress(len(answers) / len(rows))
        self._forget()
        return [answers[index] for index in range(len(rows))]

    def _note(self, context: str, pairs: Exposure) -> None:
        known = self.exposures.get(context)
        if known is None or pairs.tokens > known.tokens:
            self.exposures[context] = pairs

    def _score_shared(self, rows: list[list[int]], sizes: list[int]) -> tuple[list[Answer], list[Exposure]]:
        """Score continuations of one context, which runs once; tokens shared with the last context do not run again."""
        prefix = rows[0][: len(rows[0]) - sizes[0] - 1]
        self._run_prefix(prefix)
        tails = [row[len(prefix) : -1] for row in rows]
        longest = max(range(len(rows)), key=lambda index: len(tails[index]))
        cache = copy.deepcopy(self._cache)
        if len(rows) > 1:
            cache.batch_repeat_interleave(len(rows))
        input_ids, mask = self._padded(tails)
        past = mask.new_ones(len(rows), len(prefix))
        attention_mask = torch.cat([past, mask], dim=1)
        given = {"attention_mask": attention_mask, **cache_argument(self.model, cache)}
        output = self.model(input_ids=input_ids, use_cache=True, **given)
        members = []
        for layer, new in self._take_seen().items():
            old = self._members.get(layer, new[:1, :0])[0]
            members.append(torch.cat([old, new[longest, : len(tails[longest])]]))
        pairs = self._exposure(len(rows[longest]) - 1, members)
        scored = [
            self._answer(logits, row, size, len(tail))
            for logits, row, size, tail in zip(output.logits, rows, sizes, tails)
        ]
        return scored, [pairs] * len(rows)

    def _run_prefix(self, prefix: list[int]) -> None:
        """Extend or crop the kept cache to exactly these tokens."""
        common = 0
        for old, new in zip(self._tokens, prefix):
            if old != new:
                break
            common += 1
        if self._cache is None or not common:
            self._cache, self._members, common = DynamicCache(config=self.model.config), {}, 0
        elif common < len(self._tokens):
            self._cache.crop(common - len(self._tokens))
            self._members = {layer: old[:, :common] for layer, old in self._members.items()}
        if common < len(prefix):
            input_ids = torch.tensor([prefix[common:]], device=self.device)
            given = cache_argument(self.model, self._cache)
            self.model(input_ids=input_ids, use_cache=True, logits_to_keep=1, **given)
            for layer, new in self._take_seen().items():
                known = self._members.get(layer)
                self._members[layer] = new if known is None else torch.cat([known, new], 1)
        self._tokens = list(prefix)

    def _score_padded(self, rows: list[list[int]], sizes: list[int]) -> tuple[list[Answer], list[Exposure]]:
        """Whole requests side by side, padded at the right and masked there."""
        inputs = [row[:-1] for row in rows]
        input_ids, mask = self._padded(inputs)
        first = min(len(row) - size for row, size in zip(inputs, sizes))
        kept = torch.arange(first, input_ids.shape[1], device=self.device)  # logits of the shared context are not made
        attention_mask = None if bool(mask.all()) else mask
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, logits_to_keep=kept)
        seen = self._take_seen()
        scored, pairs = [], []
        for index, (row, size) in enumerate(zip(rows, sizes)):
            scored.append(self._answer(output.logits[index], row, size, len(row) - 1 - first))
            members = [new[index, : len(row) - 1] for new in seen.values()]
            pairs.append(self._exposure(len(row) - 1, members))
        return scored, pairs

    def _exposure(self, num_tokens: int, members: list[Tensor]) -> Exposure:
        own = self.focus.sliding_windows
        if self._readings:
            readings = [reading for _, reading in sorted(self._readings.items())]
            return budget_exposure(num_tokens, self.routing_config, readings, sliding_windows=own)
        return exposure(num_tokens, self.routing_config, members, sliding_windows=own)

    def _padded(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """(N, T) int64 tokens and their mask, 0 at the right."""
        width = max(map(len, rows))
        input_ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self.device)
        return input_ids, mask

    def _answer(self, logits: Tensor, row: list[int], size: int, end: int) -> Answer:
        """Score the last `size` tokens of a row; its last logits are at `end - 1`."""
        target = torch.tensor(row[-size:], device=logits.device)
        chosen = logits[end - size : end].float()
        scores = chosen.log_softmax(-1).gather(1, target[:, None])
        return float(scores.sum()), bool((chosen.argmax(-1) == target).all())

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **kwargs: Any) -> Tensor:
        with self._routed():
            output = super()._model_generate(context, max_length, stop, **kwargs)
        mask = kwargs.get("attention_mask")
        seen = self._take_seen()
        for index, row in enumerate(context):
            first = 0 if mask is None else int((mask[index] == 0).sum())
            # Shorter answers of a batch are padded, so their last tokens are not text.
            members = [new[index, first:] for new in seen.values()]
            key = tuple(row[first:].tolist())
            self._generated[key] = self._exposure(output.shape[1] - 1 - first, members)
        return output

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """As HFLM, with the pairs of prompt and answer noted."""
        self._generated: dict[tuple[int, ...], Exposure] = {}
        texts = super().generate_until(requests, disable_tqdm or self.on_progress is not None)
        for request in requests:
            ids, _ = self.tok_batch_encode([request.args[0]])
            tokens = tuple(ids[0].tolist())
            for key, pairs in self._generated.items():
                if tokens[len(tokens) - len(key) :] == key:  # a prompt beyond the limit loses its start
                    self._note(request.args[0], pairs)
        return texts


def _load(name: str, routers: str | None, untrained: bool, device: str, dtype: str) -> tuple[FocusModel, Any]:
    from focus_core.routing.attach import attach

    if not isinstance(weights := getattr(torch, dtype, None), torch.dtype):
        raise FocusError(f"dtype is {dtype!r}: choose float32, bfloat16 or float16.")
    loaded = load_model(name, device=device, dtype=weights)
    if untrained and routers is None:
        return retrofit(loaded.model, seed=0), loaded.tokenizer
    return attach(loaded, routers, untrained=untrained and routers is None), loaded.tokenizer


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


register_model("focus")(FocusLM)  # not as a decorator, which would hide the signature from checkers
