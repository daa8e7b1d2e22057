"""What a campaign found, as a table for people."""

from tests.attack.hostile.campaign import Found

SHOWN = 40
"""Violations printed; the JSON has all."""


def table(found: Found) -> str:
    width = max(map(len, found.tallies), default=0)
    lines = [f"{'family'.ljust(width)}  requests  slowest  answers"]
    for name, tally in found.tallies.items():
        answers = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tally.kinds.items()))
        slowest = f"{tally.slowest_s:.2f} s"
        mark = f"  WRONG {tally.wrong:,}" if tally.wrong else ""
        lines.append(f"{name.ljust(width)}  {tally.sent:8,}  {slowest:>7}  {answers}{mark}")
    lines.append(f"{'all'.ljust(width)}  {found.sent:8,}  in {found.seconds:.0f} s")
    lines += [f"{name}: {value}" for name, value in (*found.victim.items(), *found.process.items())]
    lines += [f"VIOLATION {line}" for line in found.violations[:SHOWN]]
    if len(found.violations) > SHOWN:
        lines.append(f"... and {len(found.violations) - SHOWN} more")
    return "\n".join(lines)
