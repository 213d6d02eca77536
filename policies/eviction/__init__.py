"""Eviction policies: which cached, unreferenced block loses its content next. One file a policy."""
