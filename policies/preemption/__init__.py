"""Preemption policies: who gives up its memory when a running request cannot grow."""
