"""Queue policies: who of the waiting is the head."""
