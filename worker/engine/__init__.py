"""The engine: a synchronous state machine from token ids to token ids and text, one step at a time.

`engine.Engine` is the way in (`add`, `abort`, `step`). The package knows no network, no clock and no tenant's name; all
randomness is a function of a request's seed.
"""
