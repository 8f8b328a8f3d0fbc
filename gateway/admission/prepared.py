"""The arguments of the SQL function `admit` that are the same for all requests under the same limits. Pure."""

from dataclasses import dataclass
from typing import Self

from gateway.admission import claims
from gateway.admission.bucket import LIMIT_MAX
from gateway.admission.cap import AMOUNT_MAX
from gateway.admission.claims import Claims
from gateway.admission.limiter import Demand, Limit
from gateway.db.arrays import literal


@dataclass(slots=True, frozen=True)
class Prepared:
    """`buckets` are arrays of keys, allowances, bursts, and whether each is enforced; `caps` are arrays of metrics,
    whether each is of a key, of a model, allowances, and whether each is enforced.
    """

    limits: tuple[Limit, ...]
    blocked: Limit | None  # a limit of 0; there are no claims then
    claims: Claims  # whose amounts are placeholders
    buckets: tuple[str, str, str, str]
    caps: tuple[str, str, str, str, str]

    @classmethod
    def of(cls, demand: Demand) -> Self:
        """The arguments shared by all demands with the same limits as this one."""
        blocked = claims.blocked(demand)
        wanted = Claims((), (), ()) if blocked else claims.of(demand)
        buckets, caps = wanted.buckets, wanted.caps
        return cls(
            limits=demand.limits,
            blocked=blocked,
            claims=wanted,
            buckets=(
                literal(claim.key for claim in buckets),
                literal(claim.per_minute for claim in buckets),
                literal(claim.burst for claim in buckets),
                literal(claim.enforced for claim in buckets),
            ),
            caps=(
                literal(cap.metric for cap in caps),
                literal(cap.limit.key_id is not None for cap in caps),
                literal(cap.limit.model_id is not None for cap in caps),
                literal(cap.allowed for cap in caps),
                literal(cap.limit.enforced for cap in caps),
            ),
        )

    def arguments(self, demand: Demand, gateway_id: str, lease_ms: int) -> tuple[object, ...]:
        """All arguments of `admit`, in its order."""
        keys, per_minute, burst, enforced = self.buckets
        return (
            demand.request_id,
            demand.tenant_id,
            demand.api_key_id,
            demand.model_id,
            gateway_id,
            lease_ms,
            min(demand.tokens, AMOUNT_MAX),
            min(demand.cost_micro, AMOUNT_MAX),
            keys,
            per_minute,
            burst,
            literal([min(demand.amount(claim.metric), LIMIT_MAX + 1) for claim in self.claims.buckets]),
            enforced,
            *self.caps[:4],
            literal([min(demand.amount(cap.metric), AMOUNT_MAX + 1) for cap in self.claims.caps]),
            self.caps[4],
        )
