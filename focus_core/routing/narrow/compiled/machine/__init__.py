"""What the compiled loops of narrow groups ask of a processor: its vectors, its matrix units and its cache lines."""
