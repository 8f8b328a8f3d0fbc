"""The description of this server's API, for programs (OpenAPI 3.1) and for people, without a network."""
