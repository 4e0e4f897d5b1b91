"""A trace drawn as HTML, and the cells of text that every drawing shares."""
