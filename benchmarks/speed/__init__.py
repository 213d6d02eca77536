"""Parts of `benchmarks/sim_speed.py`: its cases, a child process for each simulator, its chart."""
