"""Drawing a trace as HTML: pieces of text, their data and colours, and the strip for notebooks."""
