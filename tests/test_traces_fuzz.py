"""Whatever bytes a file holds: a valid trace or one clear line of error, in bounded time and memory.

The formats and their samples are found, not listed: a format that is added is fuzzed by itself, and its test file may
add a valid sample to `tests/data/traces`.
"""
