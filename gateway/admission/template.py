"""A model's chat template: compiled in the dialect in which publishers write them, and bounded.

A template is a program by the model's publisher that runs on a client's input, in a process that serves all clients.
Knows no tokenizer and no tenant. Invariant: the loop iterations, the calls, and the items (characters of texts, members
of lists) that a rendering makes are bounded by the size of its messages.
"""

import datetime as dt
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gateway.admission.generation import Turn
from gateway.admission.generation_tag import GenerationTag

# What compiling or rendering a template can raise.
FAULTS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    RuntimeError,
)
# In all, and more for each message. A turn of a loop takes 1 to 9 us. Published templates take some tens of steps for a
# message, and some look through all messages at each: of those, 500 messages are the most.
STEPS_MAX, STEPS_MAX_MORE = 10_000, 500
CALL_STEPS = 10
ITEMS_MAX, ITEMS_MAX_MORE = 2**22, 64  # in all, and more for each character of the messages
MEMBER_ITEMS = 64  # items that a member of a list counts as: visiting it takes as long as copying so many characters
BITS_MAX = 256  # of a product or a power
PROBE = "a question"
SIZED = (str, list, tuple, dict)
COUNTED, MADE = "counted loop", "made items"  # names of filters; with a space in them, no template can call them


class Template:
    """Raises one of FAULTS for a text that is not a template."""

    def __init__(self, source: str) -> None:
        self._budget = _Budget()
        environment = _Environment(self._budget)
        tree = _Bounds().visit(environment.parse(source)).set_environment(environment)
        self._template = jinja2.Template.from_code(environment, environment.compile(tree), environment.globals)
        # Some templates accept only content in parts of type `text`, and silently leave out a plain text.
        self._parts = not self._shows(parts=False) and self._shows(parts=True)

    def render(self, turns: Sequence[Turn], *, bos_token: str, eos_token: str) -> str:
        """A chat as one prompt. A special token that the model lacks is "". Raises one of FAULTS."""
        return self._rendered(turns, {"bos_token": bos_token, "eos_token": eos_token}, parts=self._parts)

    def _rendered(self, turns: Sequence[Turn], tokens: Mapping[str, str], *, parts: bool) -> str:
        characters = sum(len(turn.content) for turn in turns)
        self._budget.steps = STEPS_MAX + STEPS_MAX_MORE * len(turns)
        self._budget.items = ITEMS_MAX + ITEMS_MAX_MORE * characters
        contents = ([{"type": "text", "text": turn.content}] if parts else turn.content for turn in turns)
        return self._template.render(
            {name: token for name, token in tokens.items() if token},
            messages=[{"role": turn.role, "content": content} for turn, content in zip(turns, contents, strict=True)],
            add_generation_prompt=True,
            tools=None,
            documents=None,
        )

    def _shows(self, *, parts: bool) -> bool:
        """Whether the template renders a message's text when its content has this form: parts, or plain text."""
        try:
            return PROBE in self._rendered([Turn("user", PROBE)], {}, parts=parts)
        except FAULTS:
            return False


class _Budget(threading.local):
    """What is left of the bounds of the rendering in this thread."""

    steps: int = 0
    items: int = 0

    def take(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise jinja2.TemplateError("it takes too many steps")

    def make(self, items: int) -> None:
        self.items -= items
        if self.items < 0:
            raise jinja2.TemplateError("it makes too much text")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.take(1)
            yield item

    def made(self, value: Any) -> Any:
        """Charge for a value that was made, including everything in it: a list may contain one value many times."""
        if isinstance(value, str):
            self.make(len(value))
            return value
        rest: list[Any] = [value]
        while rest:
            item = rest.pop()
            self.make(len(item) if isinstance(item, str) else MEMBER_ITEMS)
            if isinstance(item, (list, tuple)):
                rest.extend(cast("Sequence[Any]", item))
            elif isinstance(item, dict):
                rest.extend(cast("dict[Any, Any]", item).values())
        return value


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, budget: _Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # the optimizer would compute constants, however large, at compile time
            finalize=budget.made,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._budget = budget
        self.filters |= {"tojson": _to_json, COUNTED: budget.counted, MADE: budget.made}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]  # makes any amount of text; no published template uses it

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        self._budget.take(CALL_STEPS)
        return self._budget.made(super().call(context, called, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Whatever would be large is refused before it is there."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > BITS_MAX:
                raise OverflowError("a number is too large")
        elif operator == "*":
            sized, times = (left, right) if isinstance(left, SIZED) else (right, left)
            if isinstance(sized, SIZED) and isinstance(times, int):
                self._budget.make(len(sized) * max(0, times))
        return super().call_binop(context, operator, left, right)


class _Bounds(NodeTransformer):
    """Puts a counting filter around everything that is looped over and everything that is concatenated, except
    literals.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as jinja2 calls its kinds
        self.generic_visit(node)
        node.iter = _filtered(node.iter, COUNTED)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_bare(part) for part in node.nodes]
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.left, node.right = _bare(node.left), _bare(node.right)
        return _filtered(node, MADE)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), MADE)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), MADE)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, MADE) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), MADE)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), MADE)


def _filtered(inner: Any, name: str) -> nodes.Filter:
    return nodes.Filter(inner, name, [], [], None, None, lineno=inner.lineno)


def _bare(node: nodes.Expr) -> nodes.Expr:
    return node.node if isinstance(node, nodes.Filter) and node.name == MADE and node.node else node


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """With the separators of the standard library: the model has seen these in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)
