"""Tasks that ask for something far back in a text: a sentence among others, or one of many pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset

from focus_core.errors import FocusError

Row = dict[str, Any]
TASKS = ("needle", "pairs")
DEPTHS = (0.1, 0.5, 0.9)
REPEATS = 20
"""Questions for each depth."""
ASKED_TOGETHER = 5
"""Questions for each depth about one list of pairs."""
KINDS = "red blue green yellow black white brown grey small large old new round square soft loud"
THINGS = (
    "lamp chair table clock bottle basket hammer ladder candle mirror kettle pillow bucket ribbon button carpet "
    "drawer fiddle garden helmet jacket marble needle orchard parcel quilt rocket saddle teapot umbrella violin wagon "
    "anchor barrel compass dagger engine feather goblet harp island journal kite lantern medal notebook oar puzzle"
)
"""With `KINDS` they name more things than 8,192 tokens hold."""


def retrieval_of(name: str) -> str | None:
    """The kind of task that "needle_1024" or "pairs_1024" names; None for other names."""
    kind, line, _ = name.partition("_")
    return kind if kind in TASKS and line else None


def retrieval(name: str, tokenizer: Any, filler: str, seed: int) -> dict[str, Any]:
    """Configuration of a task for the harness.

    Args:
        name: see `retrieval_of`.
        tokenizer: counts the tokens.
        filler: text around needles.
        seed: of names and numbers.

    Raises:
        FocusError: too little filler, or more pairs than there are names.
    """
    kind, _, digits = name.partition("_")
    if kind == "needle":
        rows, question = needles(tokenizer, filler, int(digits), seed), "\n\nThe secret number of {{city}} is"
    else:
        rows, question = pairs(tokenizer, int(digits), seed), "\nThe number of the {{thing}} is"
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}" + question,
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def cut(text: str, tokenizer: Any, num_tokens: int) -> str:
    """The first `num_tokens` tokens of a text.

    Raises:
        FocusError: the text is shorter.
    """
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    if len(offsets) < num_tokens:
        raise FocusError(f"The filler has {len(offsets):,} tokens of the {num_tokens:,} asked for: give more --filler.")
    return text[: offsets[num_tokens - 1][1]]


def needles(tokenizer: Any, filler: str, num_tokens: int, seed: int, repeats: int = REPEATS) -> list[Row]:
    """Texts with one sentence about a city's secret number among other text, at each of `DEPTHS`.

    Args:
        tokenizer: counts the tokens of the text.
        filler: the other text.
        num_tokens: tokens of filler.
        seed: of cities and numbers.
        repeats: texts per depth; depths alternate, so that the first few rows cover all of them.

    Returns:
        Rows with text, city, choices (four numbers, one of them in the text), gold, depth.
    """
    cities = ("Lisbon", "Oslo", "Cairo", "Lima", "Hanoi", "Quebec", "Nairobi", "Dublin")
    rng = np.random.default_rng([seed, num_tokens])
    text = cut(filler, tokenizer, num_tokens)
    ends = [index + 1 for index in range(len(text)) if text[index] in ".!?" and text[index + 1 : index + 2].isspace()]
    if not ends:
        raise FocusError("The filler has no sentences to put a needle between: give other --filler.")
    rows = []
    for _ in range(repeats):
        for depth in DEPTHS:
            place = min(ends, key=lambda end: abs(end - depth * len(text)))
            city = str(rng.choice(cities))
            choices = [str(number) for number in rng.choice(np.arange(1000, 10000), size=4, replace=False)]
            gold = int(rng.integers(4))
            needle = f" The secret number of {city} is {choices[gold]}."
            hidden = text[:place] + needle + text[place:]
            rows.append({"text": hidden, "city": city, "choices": choices, "gold": gold, "depth": depth})
    return rows


def pairs(tokenizer: Any, num_tokens: int, seed: int, repeats: int = REPEATS) -> list[Row]:
    """Lists of things with a number each, and questions about one of them, at each of `DEPTHS`.

    It is the key-value retrieval of Liu et al., "Lost in the Middle" (arXiv 2307.03172), with words as keys. All four
    choices are in the text, so what must be found is not a number but the thing that it belongs to.

    Args:
        tokenizer: counts the tokens of the text.
        num_tokens: the most tokens of a list.
        seed: of things and numbers.
        repeats: questions per depth; depths alternate, and `ASKED_TOGETHER` for each depth share a list.

    Returns:
        Rows with text, thing, choices (four numbers of the text), gold, depth.
    """
    rng = np.random.default_rng([seed, num_tokens])
    names = [f"{kind} {thing}" for kind in KINDS.split() for thing in THINGS.split()]
    rows: list[Row] = []
    while len(rows) < repeats * len(DEPTHS):
        order = rng.permutation(len(names))
        numbers = [str(number) for number in rng.choice(np.arange(1000, 10000), size=len(names), replace=False)]
        lines = [f"The number of the {names[thing]} is {number}." for thing, number in zip(order, numbers)]
        ends = np.cumsum([len(ids) for ids in tokenizer([f"{line}\n" for line in lines])["input_ids"]])
        count = int(np.searchsorted(ends, num_tokens, side="right"))
        if count == len(lines) or count < 2 * len(DEPTHS) * ASKED_TOGETHER:
            raise FocusError(f"Lists of pairs have no {num_tokens:,} tokens: choose a number between 600 and 9,000.")
        first = [int(depth * count) - ASKED_TOGETHER // 2 for depth in DEPTHS]
        for step in range(ASKED_TOGETHER):
            for depth, start in zip(DEPTHS, first):
                place = start + step
                others = rng.choice(np.delete(np.arange(count), place), size=3, replace=False)
                gold = int(rng.integers(4))
                choices = [numbers[other] for other in others]
                choices.insert(gold, numbers[place])
                text, thing = "\n".join(lines[:count]), names[order[place]]
                rows.append({"text": text, "thing": thing, "choices": choices, "gold": gold, "depth": depth})
    return rows[: repeats * len(DEPTHS)]
