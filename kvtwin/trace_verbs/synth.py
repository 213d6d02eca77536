"""`kvtwin trace synth RECIPE --out FILE`: make a trace by a seeded generator."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.arguments import Arguments
from kvtwin.trace_verbs.writing import chosen_format, require_writable, write_and_tell
from traces.generate import generate
from traces.recipe import load_recipe, recipe_descriptions


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    format_name = chosen_format(options.out, options.to)
    document, path = load_recipe(options.recipe)
    require_writable(options.out, [str(path)])
    trace = generate(document, options.num_requests, options.seed, path.name)
    write_and_tell(trace, format_name, options.out)
    return 0


def _parser() -> Arguments:
    descriptions = recipe_descriptions()
    width = max(map(len, descriptions))
    recipes = "\n".join(f"  {name:<{width}}  {text}" for name, text in descriptions.items())
    parser = Arguments(
        "trace synth",
        "Makes a trace from a recipe: a name from below, or a YAML file (docs/recipes.md). `kvtwin trace fit` learns\n"
        "one from a trace. The same recipe and seed give the same bytes, and the recipe is in their header.",
        epilog=f"recipes that come along:\n{recipes}",
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--to", metavar="FORMAT", help="default: by the ending of FILE (.jsonl: kvtwin)")
    parser.add_argument("--seed", type=int, metavar="N", help="default: the recipe's")
    parser.add_argument("--num-requests", type=int, metavar="N", help="default: the recipe's")
    return parser
