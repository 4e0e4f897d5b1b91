"""One file per command of `focus`. Each imports heavy modules inside its function, so that help is fast."""
