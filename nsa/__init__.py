"""Native Sparse Attention: model, kernels and trainer."""
