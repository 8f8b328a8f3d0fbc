"""The parts that the wiring hands to the application."""

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admission.admission import Admission
from gateway.admission.served_models import ServedModels
from gateway.api.connections import Connections
from gateway.api.gate import Gate
from gateway.metrics import Metrics
from gateway.protocols import Dispatcher, Principals
from gateway.settings import GatewaySettings
from shared.trace import Tracer


@dataclass(slots=True, frozen=True)
class Services:
    settings: GatewaySettings
    principals: Principals
    database: AsyncEngine  # for administrators, apart from the connections that requests wait for
    served_models: ServedModels
    admission: Admission
    dispatcher: Dispatcher
    gate: Gate
    metrics: Metrics
    tracer: Tracer
    connections: Connections = field(default_factory=Connections)
