"""Write `data/previews/`: the groups of the samples under the default routers, and the figure of the first page.

    python tools/previews.py

Run it after the default routers or a sample have changed; the app ignores previews of other routers or texts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from focus_core.analysis import Trace  # noqa: E402
from focus_core.analysis.tables import text_hash  # noqa: E402
from focus_core.io.files import to_json, write_atomic  # noqa: E402
from focus_core.shipped import DEFAULT  # noqa: E402
from workbench.engine import service  # noqa: E402
from workbench.engine.service import Settings  # noqa: E402
from workbench.shell import texts  # noqa: E402
from workbench.tokens import previews  # noqa: E402
from workbench.tokens.reads import DROPPED, LOCAL, SAME_GROUP, SINK, relations, repeated_words  # noqa: E402

FIGURE_SAMPLE, FIGURE_CHARACTERS = "story", 2_300
"""The figure shows one token near the end of so many characters of this sample."""
MOST_READ = 0.2
"""Share of the distant tokens that the token of the figure reads at most."""


def settings() -> Settings:
    """The app's own when nothing is chosen."""
    own = service.router_config(DEFAULT, 8)
    return Settings(
        "default",
        DEFAULT,
        own.num_groups,
        own.top_k,
        own.window,
        own.sink_tokens,
        "untouched",
        own.layer_top_k,
        0,
        own.read_share,
    )


def write_preview(name: str, trace: Trace) -> str:
    """One sample's groups; returns the file's name."""
    families = trace.families if trace.families is not None else np.arange(trace.config.num_groups)[None]
    path = previews.folder() / f"{name}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        path,
        offsets=trace.offsets.astype(np.int32),
        layers=np.array(trace.layers, dtype=np.int16),
        groups=trace.groups.astype(np.uint8),
        families=np.broadcast_to(families, (len(trace.layers), trace.config.num_groups)).astype(np.uint8),
    )
    return path.name


def figure(trace: Trace) -> dict[str, Any]:
    """One token and its relation to every earlier one: the layer in which the most returning names are read.

    Of these names the last one in the text is taken. So the example shows what routing can do, and is no average.
    Layers in which the token reads more than `MOST_READ` of the distant ones are left out: some heads need them all.
    """

    def returning(row: int) -> pd.DataFrame:
        table = repeated_words(trace, row)
        return table.loc[(table["kept"] & table["name"]).to_numpy()].sort_values("last")

    found = [(row, names) for row in range(len(trace.layers)) if len(names := returning(row))]
    for row, names in sorted(found, key=lambda each: -len(each[1])):
        token, word = int(names["last"].iloc[-1]), str(names["word"].iloc[-1])
        codes = relations(trace, row, token)[:token]
        if (codes == SAME_GROUP).sum() <= MOST_READ * np.isin(codes, (SAME_GROUP, DROPPED)).sum():
            break
    else:
        raise SystemExit("No layer reads a returning name within its share: choose another sample.")
    distant = np.isin(codes, (SAME_GROUP, DROPPED))
    return {
        "format": previews.FORMAT,
        "routers": trace.provenance.routers,
        "routers_hash": trace.provenance.routers_hash,
        "model": trace.provenance.model,
        "sample": FIGURE_SAMPLE,
        "layer": trace.layers[row],
        "reader": trace.reader,
        "token": token,
        "word": word,
        "window": trace.config.window,
        "pieces": [trace.text[start:end] for start, end in trace.offsets[: token + 1].tolist()],
        "kept": np.isin(codes, (LOCAL, SINK, SAME_GROUP)).astype(int).tolist(),
        "counts": {
            "before": token,
            "near": int((codes == LOCAL).sum()),
            "first": int((codes == SINK).sum()),
            "chosen": int((codes == SAME_GROUP).sum()),
            "distant": int(distant.sum()),
        },
    }


def main() -> None:
    """Route every sample and write the files."""
    chosen = settings()
    index: dict[str, Any] = {"format": previews.FORMAT, "routers": DEFAULT, "head": chosen.head, "texts": {}}
    index["fingerprint"] = previews.fingerprint(DEFAULT)
    for name, sample in texts.samples().items():
        text = sample.read()
        index["texts"][text_hash(text)] = write_preview(name, service.analysis(chosen, text).trace)
        print(name, flush=True)
    begin = texts.samples()[FIGURE_SAMPLE].read()[:FIGURE_CHARACTERS]
    drawn = figure(service.analysis(chosen, begin[: begin.rindex(".") + 1]).trace)
    write_atomic(previews.folder() / previews.FIGURE, to_json(drawn, indent=None))
    write_atomic(previews.folder() / previews.INDEX, to_json(index, indent=1))


if __name__ == "__main__":
    main()
