"""What `bench.gpu_check` runs on a machine with CUDA. Imports torch, triton, transformers, the engine and the kernels
alone: what else Forebay is made of need not be installed there.
"""
