"""Every way in which config.json files state their rotary embedding. Knows the fields; `rope` knows the formulas.

In newer files `rope_parameters` has everything, including `rope_theta`. Older files have `rope_theta` and
`rope_scaling`, whose kind is `rope_type` or, older still, `type`. `original_max_position_embeddings` may stand in
either place; if it is in both, the outer one counts, as in the `transformers` library. A factor without a kind is
refused: `transformers` 5 only warns, and serves a stretched model as if it had not been stretched.
"""

from worker.models.errors import ModelFileError
from worker.models.json_file import Fields
from worker.models.rope import LinearScaling, Llama3Scaling, Rope, Scaling, YarnScaling, yarn_attention

BASE_DEFAULT = 10_000.0
NESTED = ("full_attention", "sliding_attention")  # one rotary embedding for each kind of layer


def read_rope(fields: Fields, positions: int) -> tuple[Rope, int]:
    """The embedding, and the context length that it supports: `positions` (max_position_embeddings), or more if YaRN
    extends a length that the file states before the extension. Raises ModelFileError.
    """
    inner = fields.inner("rope_scaling" if fields.inner("rope_scaling").values else "rope_parameters")
    for key in NESTED:
        if inner.has(key):
            raise ModelFileError(f"{inner.place}: not supported: {key}")
    if inner.number("partial_rotary_factor", 1.0) != 1:
        raise ModelFileError(f"{inner.place}: not supported: partial_rotary_factor")
    outer_base = fields.number("rope_theta", BASE_DEFAULT)
    scaling = _scaling(fields, inner, positions)
    rope = Rope(inner.number("rope_theta", outer_base), scaling)
    return rope, rope.reach(positions)


def _scaling(fields: Fields, inner: Fields, positions: int) -> Scaling | None:
    older = inner.text("type", "default")
    kind = inner.text("rope_type", older)
    if inner.has("type") and kind != older:
        raise ModelFileError(f"{inner.place}: rope_type is {kind!r} and type is {older!r}")
    if not (inner.has("rope_type") or inner.has("type")) and inner.number("factor", 1.0) != 1:
        raise ModelFileError(f"{inner.place}: field factor is {inner.values['factor']}, but no rope_type says of what")
    match kind:
        case "default":
            return None
        case "dynamic":
            _factor(inner)
            return None  # see `rope`
        case "linear":
            return LinearScaling(_factor(inner))
        case "llama3":
            low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
            if not high > low:
                raise ModelFileError(f"{inner.place}: high_freq_factor {high} is not above low_freq_factor {low}")
            return Llama3Scaling(_factor(inner), low, high, _original(fields, inner, positions))
        case "yarn":
            return _yarn(inner, _original(fields, inner, positions), positions)
        case _:
            raise ModelFileError(f"{inner.place}: not supported: {kind!r}")


def _yarn(inner: Fields, original: int, positions: int) -> YarnScaling:
    factor = _factor(inner, positions / original)
    if inner.has("attention_factor"):
        attention = inner.number("attention_factor")
    elif inner.values.get("mscale") and inner.values.get("mscale_all_dim"):
        above, below = inner.number("mscale"), inner.number("mscale_all_dim")
        attention = yarn_attention(factor, above) / yarn_attention(factor, below)
    else:
        attention = yarn_attention(factor)
    return YarnScaling(
        factor,
        original,
        attention,
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        whole_pairs=inner.flag("truncate", default=True),
    )


def _factor(inner: Fields, default: float | None = None) -> float:
    factor = inner.number("factor", default)
    if factor < 1:
        raise ModelFileError(f"{inner.place}: field factor is {factor}, below 1")
    return factor


def _original(fields: Fields, inner: Fields, positions: int) -> int:
    key = "original_max_position_embeddings"
    return fields.integer(key, inner.integer(key, positions))
