"""Where matching tokens gather: words, patterns, parts of speech and entities against the groups of all heads."""
