"""What an import knows of an experiment."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass
class Known:
    """What an experiment knows: features by name, with their types, and the catalogue.
    """

    context: Mapping[str, str] = field(default_factory=dict)
    arm: Mapping[str, str] = field(default_factory=dict)
    catalogue: Collection[str] = ()
