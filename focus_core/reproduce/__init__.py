"""Every published table and figure as one resumable experiment: `focus reproduce NAME`.

`registry.EXPERIMENTS` maps names to `runner.Experiment`; an experiment is a list of cells and a function that measures
one. Figures of the paper are in `data/published.json`; nothing here knows them.
"""
