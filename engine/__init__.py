"""The real engine: carries the plans of `core` out on tensors, with real weights and a real clock."""
