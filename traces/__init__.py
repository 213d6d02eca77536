"""Request traces: one schema of numpy columns, a reader a format, a seeded generator, transforms."""
