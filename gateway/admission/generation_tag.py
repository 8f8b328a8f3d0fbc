"""`{% generation %}`, with which some chat templates mark what the assistant said, for training. Here it only has to be
passed over: what is between the tags is rendered as it is.
"""

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """What is assigned inside is not seen outside, as in the libraries that evaluate the tag."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)
