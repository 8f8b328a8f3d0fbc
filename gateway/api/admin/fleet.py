"""/admin/v1/fleet: the workers, what waits for them, and the pools that fail, as the answering gateway knows them."""

from typing import Final

from gateway.api.admin.operation import Call
from gateway.api.admin.route import get
from gateway.dispatch.report import FleetReport


@get("/fleet")
async def get_fleet(call: Call) -> FleetReport:
    """Look at the workers with their state and load, the queues, and the pools that are sent probes alone."""
    return call.services.dispatcher.report()


ROUTES: Final = (get_fleet,)
