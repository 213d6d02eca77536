"""What must be seen on a real GPU: `scripts/gpu-check`. A dry run does the same in small on the CPU."""
