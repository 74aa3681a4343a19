"""The ledger on the command line."""

import argparse
import json
import sys

from . import find, sorted_ids


def main(arguments=None) -> int:
    """Measure the named claims, or all. Exit status 1 if the evidence for one misses its bounds, 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m ddcl_lite.claims", description=__doc__)
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help=f"claims to measure (default: all of {' '.join(sorted_ids())})"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of text")
    options = parser.parse_args(arguments)
    try:
        claims = [find(id) for id in options.ids or sorted_ids()]
    except ValueError as error:
        parser.error(str(error))
    results = []
    for claim in claims:
        results.append(claim.measure(options.seed, options.device))
        if not options.json:
            print(as_text(results[-1]), flush=True)
    if options.json:
        print(json.dumps([result.as_dict() for result in results], indent=2))
    return 0 if all(result.supported for result in results) else 1


def as_text(result) -> str:
    claim = result.claim
    lines = [f"{claim.id} {claim.verdict}{'' if result.supported else ' (NOT SUPPORTED)'}: {claim.statement}"]
    for item in result.evidence:
        lines.append(f"    {item.name}: {item.value:.4g}  [{item.needed or 'reported'}]")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
