"""Allocation policies: how many blocks a sequence holds for its tokens."""
