"""The control plane: requests, block pool, prefix index, scheduler. It decides; it never measures time."""
