"""Write the part of docs/serving.md about load from the recorded run.

    python tools/serving_card.py [--check]

The figures come from `data/results/serving-load.json`, which `tests/core/serving/serving_load.py` measures.
"""

from __future__ import annotations

import cards
from cards import ROOT, Pages, Record, read, table

from focus_core.results import machine_of

RECORD = "serving-load.json"


def load(record: Record) -> str:
    """What came back from the server, and its memory."""
    settings, found = record["settings"], record["results"]
    machine = machine_of(record)
    memory = [amount for _, amount in found["memory"]]
    rows = [
        ("streams", f"{settings['streams']}, {settings['tokens']} tokens each time, {settings['texts']} texts"),
        ("answers", f"{found['answers']:,} in {found['seconds']:.0f} s"),
        ("lost", str(found["lost"])),
        ("unlike the answer to that text alone", str(found["mixed"])),
        ("different answers among the texts", str(settings["distinct_answers"])),
        ("tokens a second, all streams", f"{found['tokens_per_second']:.1f}"),
        (
            "seconds to the first token",
            f"median {found['first_token_s']['median']:.1f}, largest {found['first_token_s']['largest']:.1f}",
        ),
        ("memory of the server", f"{max(memory) / 2**20:,.0f} MiB at most"),
        ("its growth over the second half", f"{found['memory_growth_second_half'] / 2**20:,.1f} MiB"),
    ]
    date = record["made"]["date"][:10]
    return f"{table(('', 'measured'), rows)}\n\n{machine['device']}, {found['cores']} cores, {date}."


def pages() -> Pages:
    """docs/serving.md."""
    found: Pages = {}
    cards.fill(found, ROOT / "docs" / "serving.md", "load", load(read(RECORD)))
    return found


if __name__ == "__main__":
    cards.main(pages)
