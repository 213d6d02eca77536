"""Hydra configuration: YAML only. This file makes `pkg://conf` importable from an installed wheel."""
