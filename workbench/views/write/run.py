"""The two models write in turns, and both then read each text; all under the model's lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from focus_core.evaluation.continuation import Continuation, predictions
from focus_core.generation import Written, first_difference, prompt_ids, write
from focus_core.models import LoadedModel
from focus_core.routing.model import FocusModel, Mode
from focus_core.routing.narrow.compiling import compile_ahead
from workbench.engine import service
from workbench.engine.service import Settings
from workbench.tokens.pieces import token_names


@dataclass(frozen=True)
class Request:
    """What is to be written.

    Attributes:
        prompt: text to continue; a document may stand before it.
        settings: model, routers and routing.
        new_tokens: at most so many.
        temperature: 0 for the likeliest token each time.
        seed: of sampling.
        chat: put the prompt into the model's chat template.
    """

    prompt: str
    settings: Settings
    new_tokens: int
    temperature: float
    seed: int
    chat: bool


@dataclass
class Draft:
    """One text while it is written; it survives a stop.

    Attributes:
        mode: who writes.
        prompt_tokens: tokens before it.
        tokens: ids so far.
        text: of these tokens.
        seconds: since the first of them.
    """

    mode: Mode
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first."""
        return (len(self.tokens) - 1) / self.seconds if len(self.tokens) > 1 and self.seconds > 0 else None


@dataclass(frozen=True, eq=False)
class Pair:
    """Both texts, each with the predictions of both models along it.

    Attributes:
        request: what was asked for.
        written: the texts of the untouched and of the routed model.
        along: predictions along each of them.
        pieces: the texts cut into their tokens.
        names: spelling of every token id that is listed.
        difference: place of the first token that differs, None if all are equal.
        model: the model's name.
    """

    request: Request
    written: tuple[Written, Written]
    along: tuple[Continuation, Continuation]
    pieces: tuple[list[str], list[str]]
    names: dict[int, str]
    difference: int | None
    model: str


def write_pair(request: Request, on_draft: Callable[[Draft], None]) -> Pair:
    """Write with the untouched model, then with the routed one; then let both read both texts.

    Args:
        request: what to write.
        on_draft: called after each new token; an exception ends the writing.

    Raises:
        FocusError: a prompt, settings or routers that cannot be used.
    """
    base = service.load_base(request.settings.model)
    # Each layer reads what earlier routed layers kept: the settings of a model that writes.
    settings = replace(request.settings, states="routed")
    loaded = LoadedModel(base.model, base.tokenizer, base.info)
    with base.lock:
        return service.routed(base, settings, lambda focus: _pair(focus, loaded, request, on_draft))


def _pair(focus: FocusModel, loaded: LoadedModel, request: Request, on_draft: Callable[[Draft], None]) -> Pair:
    ids = prompt_ids(loaded, request.prompt, chat=request.chat, room=request.new_tokens)
    tokenizer: Any = loaded.tokenizer
    changes = request.settings.changes
    written: list[Written] = []
    modes: tuple[Mode, Mode] = ("off", "hard")
    for mode in modes:
        draft, started = Draft(mode, ids.shape[1]), [0.0]

        def take(token: int, draft: Draft = draft, started: list[float] = started) -> None:
            now = time.perf_counter()
            if not draft.tokens:
                started[0] = now
            draft.tokens.append(token)
            draft.text = str(tokenizer.decode(draft.tokens, skip_special_tokens=True))
            draft.seconds = now - started[0]
            on_draft(draft)

        on_draft(draft)
        if mode == "hard":
            with focus.routing(mode, **changes):
                compile_ahead(focus)  # not in the seconds of the first tokens
        written.append(
            write(
                focus,
                tokenizer,
                ids,
                mode=mode,
                max_new_tokens=request.new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                on_token=take,
                changes=changes if mode == "hard" else None,
            )
        )
    untouched, routed = written
    along = [
        _along(focus, ids, each, changes) for each in ((untouched,) if untouched.tokens == routed.tokens else written)
    ]
    found = along[0], along[-1]
    return Pair(
        request=request,
        written=(untouched, routed),
        along=found,
        pieces=(_pieces(tokenizer, untouched.tokens), _pieces(tokenizer, routed.tokens)),
        names=_names(tokenizer, found),
        difference=first_difference(untouched, routed),
        model=loaded.info.name,
    )


def _along(focus: FocusModel, ids: torch.Tensor, written: Written, changes: dict[str, Any]) -> Continuation:
    new = torch.tensor(written.tokens, dtype=ids.dtype, device=ids.device)[None]
    return predictions(focus, torch.cat([ids, new], dim=1), ids.shape[1], changes=changes)


def _pieces(tokenizer: Any, tokens: tuple[int, ...]) -> list[str]:
    """The text of each token; joined they are the whole text, a character that is cut stands at its last token."""
    found, done = [], ""
    for end in range(1, len(tokens) + 1):
        text = str(tokenizer.decode(list(tokens[:end]), skip_special_tokens=False))
        if text.endswith("�") and end < len(tokens):  # half of a character so far
            found.append("")
            continue
        found.append(text[len(done) :])
        done = text
    return found


def _names(tokenizer: Any, along: tuple[Continuation, Continuation]) -> dict[int, str]:
    return token_names(tokenizer, (int(token) for each in along for token in each.top_ids.ravel()))
