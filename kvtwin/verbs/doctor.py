"""`kvtwin doctor`: is this installation sound?"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.arguments import Arguments
from kvtwin.doctor import doctor, print_doctor


def run(args: Sequence[str]) -> int:
    Arguments("doctor", "Checks this installation; 1 if something is broken.").parse_args(args)
    checks = doctor()
    print_doctor(checks)
    return int(any(check.state == "error" for check in checks))
