"""Several kinds of text and lengths: the run, its record, means over kinds, table and figure."""
