"""Long answers, written in slices between which other requests have their turn."""

from collections.abc import Mapping
from typing import Any

import msgspec

from service.log.replay import Pace

_encode = msgspec.json.Encoder().encode


async def written(content: Mapping[str, Any], long: str) -> bytes:
    """As JSON. long: the member that is a long list."""
    pace, items = Pace(), []
    for item in content[long]:
        items.append(_encode(item))
        await pace.keep()
    return _encode({**content, long: msgspec.Raw(b"[%b]" % b",".join(items))})
