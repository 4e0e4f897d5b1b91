"""What every page stands in: frame, sidebar, state, texts and session files."""
