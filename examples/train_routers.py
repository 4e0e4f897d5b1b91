"""Train routers on your own text, and print how they do on held-out text beside untrained ones.

python examples/train_routers.py book.txt more-books/ --out runs/mine --held-out other-book.txt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from focus_core import FocusConfig
from focus_core.training.run import train_routers

COLUMNS = ["routers", "routing", "top_k", "perplexity", "kept_share", "largest_group_share"]


def main() -> None:
    """Train, then print one row per causal setting."""
    parser = argparse.ArgumentParser(description="Train routers on text files and folders.")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/example"), help="folder; repeat the call to resume")
    parser.add_argument("--held-out", nargs="*", type=Path, help="default: the last 5%% of the blocks")
    parser.add_argument("--model", default="default")
    parser.add_argument("--router", default="layer", help="layer, or head for one router per key/value head")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=512, help="tokens per block")
    arguments = parser.parse_args()

    run = train_routers(
        arguments.texts,
        arguments.out,
        model=arguments.model,
        config=FocusConfig(router=arguments.router, num_groups=arguments.groups),
        held_out=arguments.held_out,
        steps=arguments.steps,
        length=arguments.length,
        eval_top_k=[1, 2],
    )
    trained, untrained = pd.DataFrame(run.results), pd.DataFrame(run.untrained)
    rows = pd.concat([trained.assign(routers="trained"), untrained.assign(routers="untrained")])
    # Sequence balance sees later tokens, so its perplexity is no measure of a language model.
    print(rows.loc[rows["balance"] != "sequence", COLUMNS].round(3).to_string(index=False))
    print(f"The routers are in {run.folder}.")


if __name__ == "__main__":
    main()
