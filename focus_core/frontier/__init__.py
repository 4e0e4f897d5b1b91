"""Quality against pairs kept and against measured speed: routers beside published sparse attentions."""
