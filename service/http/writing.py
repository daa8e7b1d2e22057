"""Long answers, encoded in slices between which other requests have their turn."""

from collections.abc import Mapping

import msgspec

from service.log.replay import Pace

_encode = msgspec.json.Encoder(enc_hook=vars).encode  # vars: of pydantic models


async def encode_in_slices(content: Mapping[str, object]) -> bytes:
    """As JSON. Its lists may be long: they are encoded item by item."""
    pace, encoded = Pace(), dict[str, object]()
    for name, value in content.items():
        encoded[name] = value
        if isinstance(value, list):
            items = []
            for item in value:
                items.append(_encode(item))
                await pace.keep()
            encoded[name] = msgspec.Raw(b"[%b]" % b",".join(items))
    return _encode(encoded)
