"""The vocabulary that the gateway and the worker share. Imports nothing of ours, no framework, no torch."""
