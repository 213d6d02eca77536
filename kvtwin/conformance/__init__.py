"""Does a policy keep the promises of its kind? For the command (`kvtwin policy check`) and for an author's own tests.

from kvtwin.conformance import check_policy

    def test_it_keeps_its_promises():
        check_policy(MyPolicy, threshold=3)
"""

from kvtwin.conformance.checking import (
    FAST,
    FULL,
    Check,
    Effort,
    Finding,
    Subject,
    check_policy,
    checks_of,
    findings,
    subject_of,
)
from kvtwin.conformance.fault import NotChecked, PolicyFault

__all__ = [
    "FAST",
    "FULL",
    "Check",
    "Effort",
    "Finding",
    "NotChecked",
    "PolicyFault",
    "Subject",
    "check_policy",
    "checks_of",
    "findings",
    "subject_of",
]
