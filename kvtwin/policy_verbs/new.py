"""`kvtwin policy new NAME --kind KIND`: a policy that works, and its test, in a folder of the author's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvtwin.arguments import Arguments
from kvtwin.new_policy import Draft, draft_policy, write_draft
from kvtwin.policy_kinds import KINDS, kind_named

EXAMPLES = """examples:
  kvtwin policy new my_policy --kind eviction
  kvtwin policy new shortest_first --kind queue --dir ~/policies"""


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    draft = draft_policy(options.name, kind_named(options.kind))
    policy, test = write_draft(draft, Path(options.dir).expanduser())
    print("\n".join([str(policy), str(test), "", *_next_steps(draft, policy.parent, test.name)]))
    return 0


def _next_steps(draft: Draft, folder: Path, test: str) -> list[str]:
    go = [] if folder.samefile(Path.cwd()) else [f"cd {folder}"]
    return [
        f"in YAML: {draft.yaml}",
        "",
        *go,
        f"kvtwin policy check {draft.target}",
        f"python -m pytest {test}",
        f"kvtwin sim {draft.use}",
    ]


def _parser() -> Arguments:
    parser = Arguments(
        "policy new", "A file with a policy of your own, which works as it is, and its test.", epilog=EXAMPLES
    )
    parser.add_argument("name", help="of the file, and of the class in it: my_policy holds MyPolicy")
    parser.add_argument("--kind", required=True, choices=KINDS)
    parser.add_argument("--dir", default=".", metavar="DIR", help="where to write (default: here); made if need be")
    return parser
