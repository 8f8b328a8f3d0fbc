"""What this server answers, described for programs (OpenAPI 3.1) and people, without a network."""
