"""Recorded decisions of other engines, replayed through the product's own scheduler and prefix indexes."""
