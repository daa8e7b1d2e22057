"""Origins of pages, as browsers name them."""

from urllib.parse import urlsplit


def origin_of(text: str) -> str:
    """An origin as browsers send it: scheme, host, and a port that is not the scheme's own.

    Raises ValueError for what is none, `*` and `null` among them.
    """
    text = text.strip()
    parts = urlsplit(text)
    port = parts.port  # raises ValueError where it is no number
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare:
        raise ValueError("write each origin as https://shop.example: no path, and no wildcard")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    own = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port and port != own else "")
