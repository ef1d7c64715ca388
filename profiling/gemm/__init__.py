"""`gemm`: measure products of matrices and the bandwidth of memory: the peak that kernels can reach."""
