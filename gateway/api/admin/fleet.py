"""/admin/v1/fleet: the workers, the queues, and the pools whose circuit is open, as seen by the gateway that
answers.
"""

from typing import Final

from gateway.api.admin.operation import Call
from gateway.api.admin.route import get
from gateway.dispatch.report import FleetReport


@get("/fleet")
async def get_fleet(call: Call) -> FleetReport:
    """Look at the workers with their state and load, the queues, and the pools that are sent probes alone."""
    return call.services.dispatcher.report()


ROUTES: Final = (get_fleet,)
