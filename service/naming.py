"""Names in messages: in quotes, the nearest known one, or a list of bounded length."""

import difflib
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

from service.errors import NotFound

NAME_CHARACTERS = 48
"""Most characters of a name that is repeated."""
VALUE_CHARACTERS = 60
"""Most characters of a value."""
LIST_CHARACTERS = 90
"""Most characters of a list of names: message, name and list fit into a problem's 200."""
SEARCHED_NAMES, COMPARED_NAMES, COMPARED_CHARACTERS = 1_000, 100, 64
"""Known names that are searched for the nearest, and of them those of a similar length that are
compared, which takes 20 ms at most: a catalogue may have a million."""


def quoted(name: str) -> str:
    """Escape a name, and cut a long one."""
    text = repr(name[:NAME_CHARACTERS])
    if len(text) > NAME_CHARACTERS + 2:  # escapes are up to ten times as long
        text = f"{text[:NAME_CHARACTERS]}{text[0]}"
    return text if len(name) <= NAME_CHARACTERS else f"{text[:-1]}...{text[-1]}"


def shortened(value: object) -> str:
    """Write a value for people, and cut a long one."""
    text = "none" if value is None else repr(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}..."


def listed(names: Collection[str]) -> str:
    """List names in quotes, as many as fit, and count the others."""
    shown, left = list[str](), LIST_CHARACTERS
    for name in names:
        left -= len(quoted(name)) + 2
        if shown and left < 0:
            break
        shown.append(quoted(name))
    more = len(names) - len(shown)
    return ", ".join(shown) + f" and {more:,} more" * bool(more)


def repeated(names: Iterable[str]) -> list[str]:
    """Find the names that are given more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def nearest(name: str, known: Collection[str]) -> str | None:
    """Find the known name that is most like a wrong one, whatever the case of its letters."""
    if len(name) > COMPARED_CHARACTERS:
        return None
    similar = (each for each in islice(known, SEARCHED_NAMES) if abs(len(each) - len(name)) <= 3)
    by_case = {each.lower(): each for each in islice(similar, COMPARED_NAMES)}
    found = difflib.get_close_matches(name.lower(), by_case, 1)
    return by_case[found[0]] if found else None


def suggestion(name: str, known: Collection[str]) -> str:
    """End a message about a wrong name: with the nearest one, or else with the known names."""
    if (near := nearest(name, known)) is not None:
        return f"; did you mean {quoted(near)}?"
    return f"; there are: {listed(known)}" if known else ""


def not_found(what: str, name: str, known: Collection[str], path: str = "") -> NotFound:
    """Return the error for a name of a policy, an arm or an experiment that nothing has."""
    say = f"there is no {what} {quoted(name)}{suggestion(name, known)}"
    return NotFound(say, path=path or what)
