"""The parts that a recipe of a trace is made of; `traces.generate` puts them together."""
