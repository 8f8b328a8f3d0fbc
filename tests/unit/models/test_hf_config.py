"""config.json as publishers write it: null fields, every spelling of RoPE scaling, and what is refused by name."""

import pytest

from tests.unit.models.folder import HEAD_DIM, Folder
from worker.models.errors import ModelFileError
from worker.models.hf_config import read_config
from worker.models.json_file import Fields
from worker.models.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling, yarn_attention

NONSENSE = [None, 0, -1, 1, 1.5, "x", "", True, [], [1], ["x"], [[1]], {}, {"a": 1}, 1e308, float("nan"), 10**30]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LLAMA, MISTRAL, QWEN2, QWEN3 = (
    {"model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"]}
    for kind in ("llama", "mistral", "qwen2", "qwen3")
)


def read(**changes):
    return read_config(Fields("x/config.json", Folder().config | changes))


def read_or_refused(changes):
    try:
        return read(**changes)
    except ModelFileError as refused:
        message = str(refused)
    assert message.startswith("x/config.json: ")
    return None


def without(*keys: str):
    return read_config(Fields("x/config.json", {k: v for k, v in Folder().config.items() if k not in keys}))


def test_null_is_as_good_as_absent():
    optional = ("head_dim", "rope_scaling", "sliding_window", "attention_bias", "tie_word_embeddings", "rope_theta")
    more = ("num_key_value_heads", "quantization_config", "mlp_bias", "hidden_act", "architectures")
    assert read(**dict.fromkeys(optional + more)) == without(*optional, *more)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"])
@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "32", True, [], 10**18])
def test_a_field_that_must_be_there_is_named(key, value):
    with pytest.raises(ModelFileError, match=f"config.json: field {key} is"):
        read(**{key: value})


def test_head_dim_is_the_configs_own():
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=None).head_dim == HEAD_DIM
    assert read(hidden_size=60, num_attention_heads=7, num_key_value_heads=1, head_dim=8).head_dim == 8
    assert read(**QWEN3).head_dim == 128


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000}},
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 5.0, "rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
    ],
)
def test_every_spelling_of_one_rope(fields):
    assert read(**fields).rope == Rope(10_000.0, LinearScaling(2.0))


@pytest.mark.parametrize("kind", [None, "default"])
def test_no_scaling(kind):
    assert read(rope_scaling={"rope_type": kind}).rope == read(rope_scaling=None).rope == Rope(10_000.0)
    assert read(rope_parameters={"rope_theta": 7.0}, rope_theta=None).rope == Rope(7.0)


def test_dynamic_scaling_changes_nothing_within_the_context():
    config = read(rope_scaling={"type": "dynamic", "factor": 4.0})
    assert config.rope == Rope(10_000.0)
    assert config.context_length == 64


def test_llama3_reads_the_length_of_the_first_training_wherever_it_stands():
    assert read(rope_scaling={"rope_type": "llama3", **LLAMA3}).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 32)
    outer = read(rope_scaling={"rope_type": "llama3", **LLAMA3}, original_max_position_embeddings=16)
    assert outer.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 16)
    del (short := dict(LLAMA3))["original_max_position_embeddings"]
    assert read(rope_scaling={"rope_type": "llama3", **short}).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


def test_yarn_stretches_the_context_that_a_config_still_states():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert read(rope_scaling=yarn).context_length == 256
    assert read(rope_scaling=yarn, max_position_embeddings=300).context_length == 300


def test_yarn_says_how_loud_it_is_in_three_ways():
    def attention(**fields):
        scaling = read(rope_scaling={"type": "yarn", "factor": 4.0, **fields}).rope.scaling
        assert isinstance(scaling, YarnScaling)
        return scaling.attention

    assert attention() == yarn_attention(4.0)
    assert attention(attention_factor=0.5, mscale=2.0, mscale_all_dim=1.0) == 0.5
    assert attention(mscale=2.0, mscale_all_dim=1.0) == yarn_attention(4.0, 2.0) / yarn_attention(4.0, 1.0)
    assert attention(mscale=2.0, mscale_all_dim=0.0) == yarn_attention(4.0)


def test_yarn_without_a_factor_takes_the_ratio_of_the_lengths():
    scaling = read(rope_scaling={"type": "yarn", "factor": None, "original_max_position_embeddings": 16}).rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.factor == 4.0


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({**MISTRAL, "sliding_window": 8}, (8, 8)),
        ({**MISTRAL, "sliding_window": None}, (None, None)),
        ({**QWEN2, "sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, (None, None)),
        ({**QWEN2, "use_sliding_window": True, "max_window_layers": 1}, (None, 4096)),
        (MISTRAL, (4096, 4096)),
        ({**LLAMA, "sliding_window": 8}, (None, None)),
        ({**QWEN2, "sliding_window": 8, "use_sliding_window": False}, (None, None)),
        ({**QWEN2, "sliding_window": 8}, (None, None)),
        ({**QWEN2, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, (8, 8)),
        ({**QWEN2, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, (None, 8)),
        ({**QWEN2, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, (None, None)),
        (
            {
                **QWEN3,
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (8, None),
        ),
    ],
)
def test_windows(fields, windows):
    assert read(**fields).windows == windows


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"model_type": None, "architectures": None}, "unnamed"),
        ({"model_type": None}, "field model_type is missing or null, and architecture LlamaForCausalLM does not"),
        ({"model_type": "qwen2"}, "field model_type is 'qwen2', and architecture LlamaForCausalLM does not"),
        ({"rms_norm_eps": None}, "field rms_norm_eps is null"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config of method 'awq'"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling: not supported: 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: field factor is missing"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling: field factor is 2.0, but no rope_type"),
        ({"rope_parameters": {"factor": 8, "type": None}}, "rope_parameters: field factor is 8, but no rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "field factor is 0.5"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "field factor is '2'"),
        ({"rope_scaling": "linear"}, "field rope_scaling is 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}, "rope_type is 'yarn' and type is"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "not above"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"num_key_value_heads": 3}, "4 heads over 3 KV heads"),
        ({"num_hidden_layers": 2000}, "2000 layers"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 1.0}, "rotary base of 1.0"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e9}}, "a context of 64000000000 tokens"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"head_dim": 7}, "odd head dimension"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
        ({**QWEN2, "use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
        ({**QWEN2, "use_sliding_window": True, "layer_types": ["full_attention", "linear"]}, "layer_types"),
        ({**QWEN2, "use_sliding_window": 1}, "use_sliding_window is 1"),
    ],
)
def test_what_would_compute_something_else_is_refused(fields, complaint):
    with pytest.raises(ModelFileError, match=r"x/config\.json") as caught:
        read(**fields)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        *Folder().config,
        "head_dim",
        "rope_scaling",
        "rope_parameters",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "quantization_config",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "num_experts",
    ],
)
@pytest.mark.parametrize("family", [LLAMA, MISTRAL, QWEN2, QWEN3], ids=lambda family: family["model_type"])
def test_nonsense_in_a_field_is_read_or_refused(family, key):
    for value in NONSENSE:
        read_or_refused({**family, "use_sliding_window": True, key: value})


@pytest.mark.parametrize(
    "key",
    [
        "rope_type",
        "type",
        "factor",
        "rope_theta",
        *LLAMA3,
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "truncate",
        "partial_rotary_factor",
    ],
)
@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_nonsense_in_a_rope_is_read_or_refused(kind, key):
    for value in NONSENSE:
        config = read_or_refused({"rope_scaling": {"rope_type": kind, **LLAMA3, "mscale": 1.0, key: value}})
        if config is not None:
            assert config.rope.frequencies(config.head_dim).shape == (config.head_dim // 2,)
            assert config.rope.attention > 0
