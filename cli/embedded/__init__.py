"""The whole stack on one machine: Postgres, NATS, gateways and workers as children of one supervisor."""
