"""Commands that measure quality, speed and cost."""
