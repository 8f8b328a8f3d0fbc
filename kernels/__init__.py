"""The operations of a decoder: one interface, with plain, CPU and Triton implementations. Imports nothing of ours."""
