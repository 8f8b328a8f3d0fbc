"""The tag `{% generation %}`, with which some chat templates mark the assistant's text for training. Here it has no
effect: the text between the tags is rendered as usual.
"""

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Variables assigned inside are not visible outside, as in the libraries that evaluate the tag."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)
