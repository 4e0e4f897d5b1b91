"""Text that a model with routers writes, token by token, with the time it takes; untouched for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextStreamer,
)

from focus_core.bench.crossover import full_below_for
from focus_core.errors import FocusError
from focus_core.models import LoadedModel
from focus_core.models.gguf import first_line
from focus_core.progress import Progress, silent
from focus_core.routing.attach import attached
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.narrow.compiling import compile_ahead
from focus_core.text import check_characters, read_text

COLDEST = 1e-3
"""The lowest temperature above 0; divided by a lower one, logits may not be finite."""


@dataclass(frozen=True)
class Written:
    """What one model wrote.

    Attributes:
        routing: "hard", or "off" for the untouched model.
        budget: what a token reads, such as "budget 15%"; "all" for the untouched model.
        prompt_tokens: tokens before it.
        tokens: ids of the new tokens.
        text: the new text.
        prefill_seconds: until the first new token.
        tokens_per_second: of the tokens after the first; None where there are none.
    """

    routing: Mode
    budget: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    prefill_seconds: float
    tokens_per_second: float | None


class _Stream(TextStreamer):
    """Passes text on as soon as it is whole, and notes when each token came."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, on_text: Callable[[str], None], on_token: Callable[[int], None]
    ) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)  # pyright: ignore[reportArgumentType]
        self.on_text, self.on_token, self.times = on_text, on_token, [time.perf_counter()]

    def put(self, value: Tensor) -> None:
        # The first call has the prompt.
        if not self.next_tokens_are_prompt:
            self.times.append(time.perf_counter())
            self.on_token(int(value.reshape(-1)[0]))
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.on_text(text)


def prompt_ids(
    loaded: LoadedModel, prompt: str, document: str | Path | None = None, *, chat: bool = False, room: int = 0
) -> Tensor:
    """Tokens of a prompt, (1, T) int64, on the model's device.

    Args:
        loaded: model and tokenizer.
        prompt: text to continue, or to answer.
        document: text file that comes before it.
        chat: put both into the model's chat template, as one message of the user.
        room: new tokens that must still fit.

    Raises:
        FocusError: an empty prompt, one with bytes that are no text, a model without a chat template, or more tokens
            than the model has positions.
    """
    text = prompt if document is None else f"{read_text(Path(document))}\n\n{prompt}"
    if not text.strip():
        raise FocusError("The prompt is empty: give some text to continue, or a --document.")
    check_characters(text)
    tokenizer: Any = loaded.tokenizer
    if chat and not tokenizer.chat_template:
        raise FocusError(f"{loaded.info.name} has no chat template: leave --chat away.")
    if chat:
        message = [{"role": "user", "content": text}]
        try:
            found = tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        except Exception as error:  # of a template that came with the model
            raise FocusError(
                f"The chat template of {loaded.info.name} cannot be used ({first_line(error)}): leave --chat away."
            ) from error
    else:
        found = tokenizer(text, return_tensors="pt", verbose=False)
    positions = getattr(loaded.model.config, "max_position_embeddings", None)
    length = found["input_ids"].shape[1]
    if positions is not None and length + room > positions:
        raise FocusError(
            f"The prompt has {length:,} tokens and {room:,} more are wanted, but {loaded.info.name} has "
            f"{positions:,} positions: shorten the document or ask for fewer."
        )
    return found["input_ids"].to(loaded.model.device)


@torch.inference_mode()
def write(
    focus: FocusModel,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    *,
    mode: Mode = "hard",
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    seed: int = 0,
    on_text: Callable[[str], None] = lambda _: None,
    on_token: Callable[[int], None] = lambda _: None,
    changes: Mapping[str, Any] | None = None,
) -> Written:
    """Continue a prompt with a cache.

    Args:
        focus: model with routers.
        tokenizer: its tokenizer.
        input_ids: (1, T) int64.
        mode: "hard", or "off" for the untouched model.
        max_new_tokens: tokens at most; the model may end earlier.
        temperature: 0 takes the most likely token each time.
        seed: of sampling.
        on_text: called with each new piece of text, once it is whole.
        on_token: called with the id of each new token, as soon as it is chosen. An exception ends the writing.
        changes: settings of hard routing to change, as in `FocusModel.routing`.

    Raises:
        FocusError: settings that cannot be used.
    """
    _check(max_new_tokens, temperature)
    stream = _Stream(tokenizer, on_text, on_token)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    sampling |= {} if not temperature else {"top_k": 0, "top_p": 1.0}
    torch.manual_seed(seed)
    with _plainly(focus.model), focus.routing(mode, **(changes or {})):
        budget = "all" if mode == "off" else focus.current.config.budget
        found = focus.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.eos_token_id,
            streamer=stream,
            logits_processor=LogitsProcessorList([_Finite()]),
            **sampling,
        )
    new = tuple(found[0, input_ids.shape[1] :].tolist())
    begin, first, last = stream.times[0], stream.times[1], stream.times[-1]
    return Written(
        mode,
        budget,
        input_ids.shape[1],
        new,
        str(tokenizer.decode(list(new), skip_special_tokens=True)),
        first - begin,
        (len(new) - 1) / (last - first) if len(new) > 1 else None,
    )


class _Finite(LogitsProcessor):
    """Refuses predictions that are not finite, of which a token would still be chosen."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not bool(scores.isfinite().all()):
            raise FocusError(
                "The predictions are not finite: the weights or the configuration of the model are damaged, so get it "
                "again."
            )
        return scores


@contextmanager
def _plainly(model: PreTrainedModel) -> Iterator[None]:
    """Leave out the settings of a checkpoint that would change what is asked for, such as beams and penalties."""
    own: Any = model.generation_config
    kept = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**kept)
    try:
        yield
    finally:
        model.generation_config = own


def _check(max_new_tokens: int, temperature: float) -> None:
    """Refuse a number of tokens or a temperature with which nothing can be written."""
    if max_new_tokens < 1:
        raise FocusError(f"The number of new tokens is {max_new_tokens}: ask for at least 1.")
    if temperature != 0 and not COLDEST <= temperature < float("inf"):
        raise FocusError(
            f"The temperature is {temperature}: choose 0 for the likeliest token, or a number from {COLDEST:g} on."
        )


def generate_text(
    prompt: str,
    *,
    document: str | Path | None = None,
    model: str | Path | LoadedModel = "default",
    routers: str | Path | FocusModel | None = None,
    compare: bool = False,
    chat: bool = False,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    seed: int = 0,
    full_below: int | None = None,
    cache_bits: int | None = None,
    on_start: Callable[[Mode], None] = lambda _: None,
    on_text: Callable[[str], None] = lambda _: None,
    progress: Progress = silent,
) -> Iterator[Written]:
    """Write with routers, and then, if wanted, with the untouched model.

    Args:
        prompt: text to continue; see `prompt_ids` for it, the document and chat.
        document: text file before the prompt.
        model: a loaded model, or a name that `load_model` accepts.
        routers: a folder, a shipped name, or a `FocusModel` of the loaded model; None for those shipped for the model.
        compare: let the untouched model write too.
        chat: use the model's chat template.
        max_new_tokens: as in `write`, like the two below.
        temperature: 0 for the most likely tokens.
        seed: of sampling.
        full_below: earlier tokens attend to everything; None for `full_below_for` this text on this machine.
        cache_bits: 8 keeps distant keys and values in 8 bits, with narrow groups; None as they are.
        on_start: told the routing before each text.
        on_text: called with each new piece of text.
        progress: told of loading.

    Yields:
        One text for each routing.
    """
    _check(max_new_tokens, temperature)
    with attached(model, routers, progress=progress) as (loaded, focus):
        ids = prompt_ids(loaded, prompt, document, chat=chat, room=max_new_tokens)
        modes: tuple[Mode, ...] = ("hard", "off") if compare else ("hard",)
        full_below = full_below_for(focus, ids.shape[1], progress=progress) if full_below is None else full_below
        with focus.routing("hard", cache_bits=cache_bits):
            compile_ahead(focus, progress=progress)
        for mode in modes:
            on_start(mode)
            yield write(
                focus,
                loaded.tokenizer,
                ids,
                mode=mode,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                seed=seed,
                on_text=on_text,
                changes={"full_below": full_below, "cache_bits": cache_bits} if mode == "hard" else None,
            )


def first_difference(one: Written, other: Written) -> int | None:
    """Place of the first new token that differs, from 0; None where all are equal."""
    for place, (a, b) in enumerate(zip(one.tokens, other.tokens)):
        if a != b:
            return place
    return None if len(one.tokens) == len(other.tokens) else min(len(one.tokens), len(other.tokens))
