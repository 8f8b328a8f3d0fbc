"""The errors of the catalogue.

CatalogueError
├── NotFound        no such tenant, plan, tier, key, quota, model or grant
├── AlreadyExists   the name is taken
└── Refused         a rule of the schema says no
"""


class CatalogueError(Exception):
    """The message is one sentence for the operator."""


class NotFound(CatalogueError):
    pass


class AlreadyExists(CatalogueError):
    pass


class Refused(CatalogueError):
    pass
