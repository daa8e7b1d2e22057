"""Pages, scripts and their headers; the SDK's size; the demo's catalogue is the example's."""

import gzip
import hashlib
import json
import re
import tomllib

import pytest

from service import __version__
from service.app import EXAMPLE
from service.http.web import WEB
from simulator_client.worlds.zooplus import CLICK_CHANCE
from tests.support.service import Wire, expect_problem

SDK = WEB / "sdk"
FOLDERS = {"/sdk": "sdk", "/demo": "demo", "/docs": "docs", "/": "console"}
"""Where a folder is served."""
SDK_BYTES = 5_200
IMPORT = b"import(/* webpackIgnore: true */ /* @vite-ignore */ url)"
"""Of the SDK, by its loader, which no bundler may resolve."""


@pytest.mark.parametrize(("module", "most_bytes"), [("forage.js", SDK_BYTES), ("loader.js", 2_048)])
def test_the_sdk_is_small_and_stands_alone(module: str, most_bytes: int) -> None:
    source = (SDK / module).read_bytes()
    assert len(gzip.compress(source, 9, mtime=0)) < most_bytes
    assert not re.search(rb"^\s*import\b|\brequire\(", source, re.MULTILINE)
    imports = re.findall(rb"\bimport\(.*\)", source)
    assert imports == ([] if module == "forage.js" else [IMPORT])


def test_the_package_can_be_published_as_it_is() -> None:
    package = json.loads((SDK / "package.json").read_text())
    assert package["version"] == __version__
    assert package["type"] == "module"
    assert "dependencies" not in package
    exported = [path for each in package["exports"].values() for path in each.values()]
    named = {package["main"], package["types"], *exported}
    for file in [*package["files"], *named]:
        assert (SDK / file).is_file()


def methods(module: str) -> set[str]:
    """Of what a module's function returns."""
    made = re.search(r"  return \{\s+(select,.*?)\};", (SDK / module).read_text(), re.DOTALL)
    assert made
    return {each.partition(":")[0].strip() for each in made[1].split(",")} - {""}


def test_every_method_has_a_type_and_the_loader_has_all() -> None:
    for module in ("forage", "loader"):
        source, declared = ((SDK / f"{module}.{kind}").read_text() for kind in ("js", "d.ts"))
        [name] = re.findall(r"^export (?:async )?function (\w+)", source, re.MULTILINE)
        assert f"export function {name}(" in declared
    types = (SDK / "forage.d.ts").read_text()
    assert len(methods("forage.js")) > 5
    assert methods("loader.js") == methods("forage.js")
    for name in methods("forage.js"):
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
    tag = plain.headers["etag"]
    for sent, status in ((tag, 304), ('"another"', 200)):
        again = wire.get("/sdk/forage.d.ts", headers={"If-None-Match": sent})
        assert again.status_code == status
        assert again.headers["etag"].removeprefix("W/") == tag.removeprefix("W/")
        assert (again.content == b"") == (status == 304)


@pytest.mark.parametrize("folder", sorted(set(FOLDERS.values())))
def test_no_page_asks_another_host(folder: str) -> None:
    for file in (WEB / folder).rglob("*"):
        if file.suffix in (".html", ".css", ".js", ".svg"):
            text = file.read_text().replace("http://www.w3.org/", "")  # names of XML
            assert not re.search(r"(src|href|url\(|import|fetch\()\W{0,3}(https?:)?//\w", text), (
                file
            )


def test_every_page_is_of_this_service_alone(wire: Wire) -> None:
    """Whatever it loads: a script of another host would be one of the console's origin."""
    for path in ("/", "/demo/", "/docs/"):
        answer = wire.get(path)
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert policy == wire.get("/").headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "http" not in policy
        assert not re.search(r"(https?:)?//\w", answer.text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=", answer.text)
        for named in re.findall(r"(?:src|href)=\"([^\"#]+)\"", answer.text):
            found = wire.get(str(answer.url.join(named)), follow_redirects=True)
            assert found.status_code == 200, named
    nothing = ("/sdk/", "/sdk/..%2f..%2fapp.py", "/demo/../app.py", "/demo/no")
    for path in ("/redoc", "/docs/oauth2-redirect", *nothing):
        expect_problem(wire.get(path), 404)
    moved = wire.get("/demo")
    assert (moved.status_code, moved.headers["location"]) == (308, "demo/")


def test_swagger_ui_is_the_package_that_is_noted() -> None:
    vendor = WEB / "docs" / "vendor"
    version, *sums = (vendor / "swagger-ui.VERSION.txt").read_text().splitlines()
    assert re.fullmatch(r"swagger-ui-dist \d+\.\d+\.\d+", version)
    noted = dict(reversed(line.split()) for line in sums)
    assert noted == {
        name: hashlib.sha256((vendor / name).read_bytes()).hexdigest()
        for name in ("swagger-ui-bundle.js", "swagger-ui.css")
    }
    assert "Apache License" in (vendor / "swagger-ui.LICENSE.txt").read_text()
    assert "SmartBear" in (vendor / "swagger-ui.NOTICE.txt").read_text()


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
                answer = wire.get(f"{prefix.rstrip('/')}/{name}")
                assert answer.status_code == 200, name
                if file.suffix == ".js":
                    assert answer.headers["content-type"].startswith("text/javascript")
