"""One file per command of `focus`. Each imports what is heavy inside its function, so that help stays
fast."""
