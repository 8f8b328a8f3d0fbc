"""The types of the texts that administrators send, in the forms that the database's schema demands."""

from typing import Annotated

import msgspec

from gateway import keys


def form(pattern: str) -> str:
    """The pattern of a whole text: in Python, `$` alone also matches before a final line feed."""
    return rf"^{pattern}$(?!\n)"


Name = Annotated[
    str, msgspec.Meta(pattern=form("[a-z0-9][a-z0-9-]{0,62}"), description="Lower-case letters, digits, dashes.")
]
Alias = Annotated[str, msgspec.Meta(min_length=1, max_length=256, description="A model's name.")]
Note = Annotated[str, msgspec.Meta(max_length=200, description="What it is for.")]
PublicId = Annotated[str, msgspec.Meta(pattern=form(f"[0-9a-z]{{{keys.PUBLIC_ID_LENGTH}}}"))]
