"""Replay: when requests arrive, what waits for what, and what their prompts share."""
