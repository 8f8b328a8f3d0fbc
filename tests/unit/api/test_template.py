"""A template that would never end, or would fill the memory, ends; every other renders as jinja2 renders it."""

import jinja2
import msgspec
import pytest

from gateway.admission.generation import Turn
from gateway.admission.template import FAULTS, Template

TURNS = (Turn("system", "be brief"), Turn("user", "hi"), Turn("assistant", "<b>é"), Turn("user", "bye"))
GROWING = "{{% set n = namespace(x='ab') %}}{{% for i in range(60) %}}{}{{% endfor %}}{{{{ n.x | length }}}}"


def rendered(source: str, turns: tuple[Turn, ...] = TURNS) -> str:
    return Template(source).render(turns, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
        "{% for m in [[[], []]] recursive %}{{ loop([m, m]) }}{% endfor %}",
        GROWING.format("{% set n.x = n.x ~ n.x %}"),
        GROWING.format("{% set n.x = n.x + n.x %}"),
        GROWING.format("{% set n.x = n.x * 2 %}"),
        GROWING.format("{% set n.x = [n.x, n.x] | join %}"),
        GROWING.format("{% set n.x = 'aa'.replace('a', n.x) %}"),
        GROWING.format("{% set n.x = [n.x, n.x] %}"),
        GROWING.format("{% set n.x = (n.x, n.x) %}"),
        GROWING.format("{% set n.x = {'a': n.x, 'b': n.x} %}"),
        GROWING.format("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        "{% for i in range(9999) %}{{ 'a' * 999 }}{% endfor %}",
        "{% set n = namespace(x=7) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a' | center(10 ** 17) }}",
        "{{ lipsum(10 ** 9) }}",
    ],
)
def test_a_template_that_would_not_end_does(source: str) -> None:
    with pytest.raises(FAULTS):
        rendered(source)


def test_what_a_template_may_do_grows_with_the_messages() -> None:
    quadratic = "{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}ok"
    assert rendered(quadratic, TURNS * 100) == "ok"
    assert rendered("{{ messages[0].content | upper | lower }}", (Turn("user", "x" * 5_000_000),)) == "x" * 5_000_000


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m['content'] + eos_token }}{% else %}none{% endfor %}",
        "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.content | trim ~ (1 + 2) }}{% endfor %}",
        "{% set n = namespace(n=0) %}{% for k, v in messages[0].items() %}{% set n.n = n.n + 1 %}{% endfor %}{{ n.n }}",
        "{% for a, b in [(1, 'x'), (2, {'y': [3]})] %}{{ a }}{{ b }}{% endfor %}{% set c, d = 5, (6,) %}{{ c, d }}",
        "{% filter upper %}{{ bos_token }}{{ messages | length }}{% endfilter %}",
        "{% set x | upper %}a{{ nothing }}b{% endset %}{{ [x] + [1, none] }}",
        "{% for m in [1, [2, [3]]] recursive %}{{ m if m is number else loop(m) }}{% endfor %}",
        "{% macro f(m) %}{{ m.role }}{{ caller() }}{% endmacro %}{% call f(messages[1]) %}!{% endcall %}",
        "{{ tools is none and documents is none and enabled is not defined }}{{ 7 * -1 }}{{ 'ab' * 2 }}{{ 2 ** 9 }}",
    ],
)
def test_every_other_renders_as_it_does_without_bounds(source: str) -> None:
    said = {"messages": [msgspec.structs.asdict(turn) for turn in TURNS], "bos_token": "<s>", "eos_token": "</s>"}
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    assert rendered(source) == plain.render(**said, tools=None, documents=None)


def test_json_is_written_as_publishers_ask_for_it() -> None:
    assert rendered("{{ {'b': 1, 'a': '<é>'} | tojson }}") == '{"b": 1, "a": "<é>"}'
    compact = "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=true) }}"
    assert rendered(compact) == '{"a":"\\u00e9","b":1}'


@pytest.mark.parametrize(
    "shown",
    [
        "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}",
        "{% for part in m.content %}{{ part['text'] }}{% endfor %}",
        "{{ m.content[0].text }}",
        "{{ m.content if m.content is string else raise_exception('text alone') }}",
        "{{ m.content }}",
    ],
)
def test_a_template_is_told_texts_in_the_form_that_it_shows(shown: str) -> None:
    assert rendered(f"{{% for m in messages %}}{shown};{{% endfor %}}") == "be brief;hi;<b>é;bye;"


def test_a_template_that_shows_nothing_of_one_question_is_told_texts() -> None:
    assert rendered("{{ messages[1].content if messages | length > 1 }}") == "hi"


def test_a_token_that_a_model_lacks_is_not_defined() -> None:
    source = Template("{{ bos_token is defined }} {{ eos_token }}")
    assert source.render(TURNS, bos_token="", eos_token="</s>") == "False </s>"
