"""What the routes of one process have at hand."""

from dataclasses import dataclass

from service.access import Access
from service.addresses import Addresses
from service.admin import Admin
from service.batcher import SelectBatcher
from service.connections import Connections
from service.engine import Engine
from service.evaluation.running import Evaluations
from service.history import History
from service.hosts import Hosts
from service.importing import Importer
from service.journal import Journal
from service.overview import Overview
from service.settings import Settings
from service.settlement import Settlements
from service.telemetry import Telemetry
from service.upkeep.erasure import Eraser
from service.upkeep.retention import Retention


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    telemetry: Telemetry
    journal: Journal
    engine: Engine
    batcher: SelectBatcher
    settlements: Settlements
    admin: Admin
    retention: Retention
    eraser: Eraser
    importer: Importer
    access: Access
    hosts: Hosts
    connections: Connections
    addresses: Addresses
    history: History
    overview: Overview
    evaluations: Evaluations
