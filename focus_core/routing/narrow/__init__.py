"""Many narrow groups per key/value head, chosen by the query, with summaries of the others (docs/method.md)."""
