"""Frame of every page: head, sidebar, state, texts and session files."""
