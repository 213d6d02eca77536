"""`kvtwin policy check TARGET [key=value ...]`: the promises of a policy's kind, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.arguments import Arguments
from kvtwin.conformance import FAST, FULL, Finding, Subject, checks_of, findings
from kvtwin.policy_kinds import KINDS
from kvtwin.policy_target import bind_target

EXAMPLES = """examples:
  kvtwin policy check my_policy.MyPolicy depth=3
  kvtwin policy check ../elsewhere/my_policy.py:MyPolicy
  kvtwin policy check priority --kind preemption"""


def run(args: Sequence[str]) -> int:
    """0 where the policy passes every check that could be made, 1 where it does not, or none could be."""
    options = _parser().parse_args(args)
    factory, kind = bind_target(options.target, options.parameters, options.kind)
    subject = Subject(kind, factory, FAST if options.fast else FULL, options.seed)
    policy = subject.policy
    print(f"{kind.name} policy {policy.__module__}.{policy.__qualname__}")
    return _tell_all(subject)


def _tell_all(subject: Subject) -> int:
    found = []
    for finding in findings(subject):
        found.append(finding)
        print(_told(finding), flush=True)
    if found[-1].fault is None:
        return int(all(finding.not_checked for finding in found))
    for check in checks_of(subject)[len(found) :]:
        print(f"  -      {check.name} (not reached)")
    return 1


def _told(finding: Finding) -> str:
    if finding.fault is not None:
        story = "".join(f"\n           {line}" for line in finding.fault.story)
        return f"  FAILS  {finding.fault.rule}\n         {finding.fault.what}{story}"
    if finding.not_checked:
        return f"  -      {finding.name} (not checked: {finding.not_checked})"
    return f"  ok     {finding.name}"


def _parser() -> Arguments:
    parser = Arguments("policy check", "Does a policy keep the promises of its kind?", epilog=EXAMPLES)
    parser.add_argument(
        "target", help="my_module.MyClass, file.py:MyClass, or the name of one that `policy list` shows"
    )
    parser.add_argument("parameters", nargs="*", default=[], metavar="key=value", help="parameters of the policy")
    parser.add_argument("--kind", choices=KINDS, help="where a name alone could mean several")
    parser.add_argument("--fast", action="store_true", help="a tenth of the cases, in a tenth of the time")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases, and of the policy (default 0)")
    return parser
