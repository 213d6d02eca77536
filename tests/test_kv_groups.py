"""KV groups: full attention beside sliding windows, through the scheduler."""
