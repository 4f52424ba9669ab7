"""Look at the machine: host, GPUs, processes, software, and preflight's checks of them. Nothing here changes it."""
