"""Where what is fetched or built once is kept for later runs."""

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """$KVTWIN_CACHE, else ~/.cache/kvtwin."""
    return Path(os.environ.get("KVTWIN_CACHE") or Path.home() / ".cache" / "kvtwin")
