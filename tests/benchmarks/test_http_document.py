"""The page on performance has the figures that are kept."""

import json
import re
from statistics import median

import pytest

from benchmarks.command import RESULTS
from benchmarks.http.cases import CASES, ECHO
from benchmarks.http.document import PAGE, PART, PICTURES, drawn, results, rewritten


def test_the_page_is_that_of_the_kept_figures() -> None:
    text = PAGE.read_text()
    assert len(PART.findall(text)) == text.count("<!-- figures ") > 0
    assert rewritten(text, results()) == text
    for name in re.findall(r"\(pictures/(\S+)\)", text):
        assert (PICTURES / name).exists()


def test_kept_ratios_are_those_of_the_kept_rounds() -> None:
    kept = json.loads((RESULTS / "http.json").read_text())
    cases = kept["cases"]
    assert set(cases) == set(CASES), "every case was measured"
    for found in cases.values():
        assert len(found["per_second"]) == kept["rounds"] >= 5
        assert found["median_per_second"] == median(found["per_second"])
        pairs = zip(found["per_second"], cases[ECHO]["per_second"], strict=True)
        assert found["of_echo"] == pytest.approx(median(a / b for a, b in pairs), abs=1e-4)
        assert found["errors"] == 0


@pytest.mark.slow
def test_every_picture_of_the_page_is_drawn() -> None:
    pictures = drawn(results())
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert {f"{name}.png" for name in pictures} == set(
        re.findall(r"\(pictures/(\S+)\)", PAGE.read_text())
    )
