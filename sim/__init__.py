"""The simulator: prices the plans of `core` with a cost model, on a virtual clock of integer picoseconds."""
