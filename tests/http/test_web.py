"""Pages, scripts and their headers; the SDK's size; the demo's catalogue is the example's."""

import gzip
import json
import re
import tomllib
from pathlib import Path

import httpx
import pytest

from service import __version__
from service.http.web import FOLDERS, WEB
from service.services import EXAMPLE
from simulator_client.worlds.zooplus import CLICK_CHANCE
from tests.support.service import Wire, expect_problem

SDK = WEB / "sdk"
SDK_BYTES = 4_096


def test_the_sdk_is_under_4_kb_compressed_and_stands_alone() -> None:
    source = (SDK / "forage.js").read_bytes()
    assert len(gzip.compress(source, 9, mtime=0)) < SDK_BYTES
    assert not re.search(rb"^\s*import\b|\bimport\(|\brequire\(", source, re.MULTILINE)


def test_the_package_can_be_published_as_it_is() -> None:
    package = json.loads((SDK / "package.json").read_text())
    assert package["version"] == __version__
    assert package["type"] == "module"
    assert "dependencies" not in package
    named = {package["main"], package["types"], *package["exports"]["."].values()}
    for file in [*package["files"], *named]:
        assert (SDK / file).is_file()


def test_every_export_and_method_has_a_type() -> None:
    source, types = (SDK / "forage.js").read_text(), (SDK / "forage.d.ts").read_text()
    for name in re.findall(r"^export (?:async )?function (\w+)", source, re.MULTILINE):
        assert f"export function {name}(" in types
    made = re.search(r"return \{ (select,.*) \};", source)
    assert made
    names = [each.partition(":")[0].strip() for each in made[1].split(",")]
    assert len(names) > 5
    for name in names:
        assert re.search(rf"^  {name}\(", types, re.MULTILINE), name


def test_the_script_goes_out_compressed_typed_and_for_every_page(wire: Wire) -> None:
    answer = wire.get("/sdk/forage.js", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < SDK_BYTES
    assert answer.content == (SDK / "forage.js").read_bytes()
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["x-content-type-options"] == "nosniff"
    plain = wire.get("/sdk/forage.d.ts", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == (SDK / "forage.d.ts").read_bytes()
    told = wire.request("HEAD", "/sdk/forage.d.ts", headers={"Accept-Encoding": "identity"})
    assert told.status_code == 200
    assert told.headers["content-length"] == plain.headers["content-length"]
    assert wire.request("POST", "/sdk/forage.js").status_code == 405


def test_what_did_not_change_is_not_sent_again(wire: Wire) -> None:
    first = wire.get("/demo/shop.js")
    again = httpx_get_with_tag(wire, first.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"].removeprefix("W/") == first.headers["etag"].removeprefix("W/")
    assert httpx_get_with_tag(wire, '"another"').status_code == 200


def httpx_get_with_tag(wire: Wire, tag: str) -> httpx.Response:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(wire.app), base_url="http://forage")
    return wire.run(client.get("/demo/shop.js", headers={"If-None-Match": tag}))


def test_the_demo_is_a_page_that_runs_nothing_of_others(wire: Wire) -> None:
    moved = httpx.AsyncClient(transport=httpx.ASGITransport(wire.app), base_url="http://forage")
    answer = wire.run(moved.get("/demo"))
    assert (answer.status_code, answer.headers["location"]) == (308, "demo/")
    page = wire.get("/demo/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", page.text)


@pytest.mark.parametrize("folder", sorted(set(FOLDERS.values())))
def test_no_page_asks_another_host(folder: str) -> None:
    for file in (WEB / folder).rglob("*"):
        if file.suffix in (".html", ".css", ".js", ".svg"):
            text = file.read_text().replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"(src|href|url\(|import|fetch\()\W{0,3}(https?:)?//\w", text), (
                file
            )


@pytest.mark.parametrize("path", ["/sdk/", "/sdk/..%2f..%2fapp.py", "/demo/../app.py", "/demo/no"])
def test_what_there_is_not_is_a_problem_like_any_other(wire: Wire, path: str) -> None:
    expect_problem(wire.get(path), 404)


def test_pages_are_no_part_of_the_api(wire: Wire) -> None:
    assert not [path for path in wire.get("/openapi.json").json()["paths"] if "demo" in path]


def test_the_shop_sells_what_the_example_holds() -> None:
    shop = json.loads((WEB / "demo" / "catalogue.json").read_text())
    example = tomllib.loads(EXAMPLE.read_text())
    assert shop["experiment"] == example["name"]
    assert shop["policies"] == list(example["policies"])
    sold = {arm: {"category": product["category"]} for arm, product in shop["products"].items()}
    assert sold == example["arms"]
    assert {each: shop["personas"][each]["clicks"] for each in shop["personas"]} == CLICK_CHANCE
    assert set(shop["bestsellers"]) <= set(sold)
    drawn = (WEB / "demo" / "pictures.svg").read_text()
    for product in shop["products"].values():
        assert f'id="{product["category"].lower().replace(" ", "-")}"' in drawn


def test_every_file_has_a_place(wire: Wire) -> None:
    for prefix, folder in FOLDERS.items():
        for file in (WEB / folder).rglob("*"):
            if file.is_file():
                name = file.relative_to(WEB / folder).as_posix().removesuffix("index.html")
                assert wire.get(f"{prefix.rstrip('/')}/{name}").status_code == 200, Path(name)
