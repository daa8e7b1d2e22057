"""Names in messages: escaped, short, and with what the caller may have meant."""

from service.naming import LIST_CHARACTERS, NAME_CHARACTERS, listed, nearest, quoted, suggestion


def test_a_name_is_escaped_and_short() -> None:
    assert quoted("lints") == "'lints'"
    assert quoted("a\nb\u202e\ud800") == "'a\\nb\\u202e\\ud800'"
    assert quoted("a" * 300) == f"'{'a' * NAME_CHARACTERS}...'"
    for name in ("\ud800" * 300, "'\"" * 300, "\n" * 40, ""):
        assert len(quoted(name)) <= NAME_CHARACTERS + 5


def test_a_list_ends_between_two_names_and_counts_the_others() -> None:
    assert listed(["b", "a"]) == "'b', 'a'"
    text = listed([f"arm-{number:03}" for number in range(10_000)])
    assert text.endswith("'arm-007' and 9,992 more")
    assert len(text) <= LIST_CHARACTERS + len(" and 9,992 more")
    assert listed(["x" * 300, "y"]) == f"'{'x' * NAME_CHARACTERS}...', 'y'"


def test_the_nearest_name_is_suggested_whatever_its_case() -> None:
    known = ["lints", "linucb", "random"]
    assert nearest("linUCB", known) == "linucb"
    assert suggestion("linUCB", known) == "; did you mean 'linucb'?"
    assert suggestion("zebra", known) == "; there are: 'lints', 'linucb', 'random'"
    assert suggestion("zebra", []) == ""
    assert nearest("l" * 1_000_000, known) is None
