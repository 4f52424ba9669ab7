"""What starts processes on other nodes: Slurm by its own commands, OpenSSH, or this machine for each node."""
