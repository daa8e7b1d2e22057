"""The parts of one process that its routes use."""

from dataclasses import dataclass
from typing import Any

from service.analysis.jobs import Jobs
from service.analysis.verdicts import Verdicts
from service.clock import Clock
from service.decide.experiments import Experiments
from service.decide.select import Selector
from service.http.lifecycle import Lifecycle
from service.http.overload import Overload
from service.log.log import Log
from service.log.stores import Store
from service.manage.admin import Admin
from service.manage.erasure import Eraser
from service.manage.importing import Importer
from service.manage.retention import Retention
from service.manage.rollouts import Rollouts
from service.observe.overview import Overview
from service.observe.sizes import SizeMeter
from service.security.access import Access
from service.security.addresses import Addresses
from service.security.hosts import Hosts
from service.security.token import TokenSealer
from service.settings import Settings
from service.settle.expiry import Expiry
from service.settle.settlement import Settlements
from service.telemetry.history import History
from service.telemetry.metrics import Telemetry


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a process.

    connections   the open ones, which uvicorn keeps
    """

    settings: Settings
    lifecycle: Lifecycle
    clock: Clock
    telemetry: Telemetry
    store: Store
    log: Log
    overload: Overload
    sealer: TokenSealer
    experiments: Experiments
    selector: Selector
    settlements: Settlements
    expiry: Expiry
    admin: Admin
    rollouts: Rollouts
    retention: Retention
    sizes: SizeMeter
    eraser: Eraser
    importer: Importer
    access: Access
    hosts: Hosts
    connections: set[Any]
    max_connections: int
    addresses: Addresses
    history: History
    overview: Overview
    evaluations: Jobs
    verdicts: Verdicts
