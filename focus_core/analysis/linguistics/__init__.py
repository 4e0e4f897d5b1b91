"""Do groups follow parts of speech? The statistical protocol (docs/linguistics.md)."""
