"""Quality against pairs kept and against measured speed, for routers and published sparse attentions."""
