"""The demonstrations of docs/demonstrations.md: one file each, with `add_options` and `measure`."""
