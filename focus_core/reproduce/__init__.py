"""Every published table and figure as one resumable experiment: `focus reproduce NAME`.

`registry.EXPERIMENTS` maps names to `runner.Experiment`: a list of cells of a table, and a function that measures one.
The paper's own figures are in `data/published.json` and not used here.
"""
