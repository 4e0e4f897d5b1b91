"""Show the groups of a text: a page with every token coloured, a table, and a report with a card for every group.

python examples/group_report.py story.txt --out runs/groups --layer 12
"""

from __future__ import annotations

import argparse
from pathlib import Path

from focus_core import analyze
from focus_core.analysis.tables import to_csv
from focus_core.io.files import write_atomic
from focus_core.report.corpora.stream import StreamSettings
from focus_core.report.html import summary
from focus_core.report.run import write_report
from focus_core.routing.attach import attached
from focus_core.text import read_text


def main() -> None:
    """Write tokens.html, tokens.csv and the folder report/."""
    parser = argparse.ArgumentParser(description="Write the groups of one text as a page, a table and a report.")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/groups"))
    parser.add_argument("--model", default="default")
    parser.add_argument("--routers", help="a shipped name or a folder; default: those shipped for the model")
    parser.add_argument("--untrained", action="store_true", help="use untrained routers")
    parser.add_argument("--layer", type=int, help="layer to report; default: the middle one")
    arguments = parser.parse_args()

    with attached(arguments.model, arguments.routers, untrained=arguments.untrained) as (loaded, focus):
        with focus.routing("hard"):
            trace = analyze(focus, loaded.tokenizer, read_text(arguments.text))
        layer = trace.layers[len(trace.layers) // 2] if arguments.layer is None else arguments.layer
        page = trace.show(layer).save(arguments.out / "tokens.html")
        table = write_atomic(arguments.out / "tokens.csv", to_csv(trace.to_dataframe()))
        settings = StreamSettings(states="routed", layers=(layer,), block_length=len(trace.tokens))
        written = write_report(
            arguments.text, arguments.out / "report", model=loaded, routers=focus, settings=settings, tags=False
        )
    print(summary(written.report))
    print(f"Written: {page}, {table} and {len(written.files)} files of the report beside them.")


if __name__ == "__main__":
    main()
