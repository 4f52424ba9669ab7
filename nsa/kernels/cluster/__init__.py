"""A decode step by thread block clusters, in CUDA C++: what Triton cannot say.

A step at a long context is bound by how fast the programs of a batch row and group tell each other their results. On
GPUs with clusters (compute capability 9.0 and later) a block writes into another one's shared memory and waits at a
barrier in hardware; Triton has no words for either. So this one kernel is CUDA C++, ``step.cu``, compiled at its first
use by NVRTC, which comes with torch; ``gpu.cuh`` holds every instruction it takes from PTX, and the tests replace that
file to run the kernel on a CPU.

Where it cannot run, :mod:`nsa.kernels.step` launches the Triton kernels, which compute the same.
"""

from __future__ import annotations

from nsa.kernels.cluster.launch import launch_cluster, why_no_cluster
from nsa.kernels.cluster.plan import ClusterPlan, plans

__all__ = ["ClusterPlan", "launch_cluster", "plans", "why_no_cluster"]
