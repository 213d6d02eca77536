"""`kvtwin doctor`: is this installation sound?"""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import InputError
from kvtwin.doctor import doctor, print_doctor


def run(args: Sequence[str]) -> int:
    if args:
        raise InputError(f"doctor takes no arguments, got {' '.join(args)}")
    checks = doctor()
    print_doctor(checks)
    return int(any(check.state == "error" for check in checks))
